# Draws forecast.svg from forecast.csv: run `gnuplot forecast.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,641 background '#ffffff' font 'sans-serif,14' rounded
set output 'forecast.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'Predicted and measured times' at screen 0.09583, screen 0.95944 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.72699
set bmargin at screen 0.10296
set key at screen 0.08750, screen 0.93292 left top horizontal Left reverse samplen 2.2 spacing 1 width -2.673 maxcols 4 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'measured (s)' offset 0,0.55
set label 'predicted (s)' at screen 0.01771, screen 0.41498 center rotate by 90
set logscale x 10
set xtics ('0.02' 0.02, '' 0.03 1, '' 0.04 1, '0.05' 0.05, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '0.2' 0.2, '' 0.3 1, '' 0.4 1, '0.5' 0.5, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '2' 2, '' 3 1)
set xrange [0.0132128:3.12584]
set logscale y 10
set ytics ('0.02' 0.02, '' 0.03 1, '' 0.04 1, '0.05' 0.05, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '0.2' 0.2, '' 0.3 1, '' 0.4 1, '0.5' 0.5, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '2' 2, '' 3 1)
set yrange [0.0131488:3.46145]

plot 'forecast.csv' skip 1 every ::0::1 using 2:3 with lines lw 2.2 lc rgb '#0072B2' title 'equal', \
     'forecast.csv' skip 1 every ::2::19 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'kvp, tpot', \
     'forecast.csv' skip 1 every ::20::37 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'kvp, ttft', \
     'forecast.csv' skip 1 every ::38::49 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'kvr, tpot', \
     'forecast.csv' skip 1 every ::50::61 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'kvr, ttft', \
     'forecast.csv' skip 1 every ::62::75 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'lazyllm, tpot', \
     'forecast.csv' skip 1 every ::76::89 using 2:3 with points pt 5 ps 0.75 lc rgb '#555555' title 'lazyllm, ttft', \
     'forecast.csv' skip 1 every ::90::103 using 2:3 with points pt 9 ps 0.75 lc rgb '#0072B2' title 'mlkv, tpot', \
     'forecast.csv' skip 1 every ::104::117 using 2:3 with points pt 13 ps 0.75 lc rgb '#D55E00' title 'mlkv, ttft', \
     'forecast.csv' skip 1 every ::118::135 using 2:3 with points pt 11 ps 0.75 lc rgb '#009E73' title 'plain, tpot', \
     'forecast.csv' skip 1 every ::136::153 using 2:3 with points pt 7 ps 0.75 lc rgb '#CC79A7' title 'plain, ttft', \
     'forecast.csv' skip 1 every ::154::165 using 2:3 with points pt 5 ps 0.75 lc rgb '#E69F00' title 'random-prune, tpot', \
     'forecast.csv' skip 1 every ::166::177 using 2:3 with points pt 9 ps 0.75 lc rgb '#56B4E9' title 'random-prune, ttft', \
     'forecast.csv' skip 1 every ::178::185 using 2:3 with points pt 13 ps 0.75 lc rgb '#555555' title 'slim, tpot', \
     'forecast.csv' skip 1 every ::186::193 using 2:3 with points pt 11 ps 0.75 lc rgb '#0072B2' title 'slim, ttft', \
     'forecast.csv' skip 1 every ::194::201 using 2:3 with points pt 7 ps 0.75 lc rgb '#D55E00' title 'specprefill, tpot', \
     'forecast.csv' skip 1 every ::202::209 using 2:3 with points pt 5 ps 0.75 lc rgb '#009E73' title 'specprefill, ttft', \
     'forecast.csv' skip 1 every ::210::227 using 2:3 with points pt 9 ps 0.75 lc rgb '#CC79A7' title 'static-prune, tpot', \
     'forecast.csv' skip 1 every ::228::245 using 2:3 with points pt 13 ps 0.75 lc rgb '#E69F00' title 'static-prune, ttft', \
     'forecast.csv' skip 1 every ::246::257 using 2:3 with points pt 11 ps 0.75 lc rgb '#56B4E9' title 'tsp, tpot', \
     'forecast.csv' skip 1 every ::258::269 using 2:3 with points pt 7 ps 0.75 lc rgb '#555555' title 'tsp, ttft'
