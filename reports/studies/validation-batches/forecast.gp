# Draws forecast.svg from forecast.csv: run `gnuplot forecast.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,620 background '#ffffff' font 'sans-serif,14' rounded
set output 'forecast.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'Predicted and measured times' at screen 0.09583, screen 0.95806 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.75161
set bmargin at screen 0.10645
set key at screen 0.08750, screen 0.93065 left top horizontal Left reverse samplen 2.2 spacing 1 width -2.673 maxcols 4 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'measured (s)' offset 0,0.55
set label 'predicted (s)' at screen 0.01771, screen 0.42903 center rotate by 90
set logscale x 10
set xtics ('0.02' 0.02, '' 0.03 1, '' 0.04 1, '0.05' 0.05, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '0.2' 0.2, '' 0.3 1, '' 0.4 1, '0.5' 0.5, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '2' 2, '' 3 1)
set xrange [0.0133917:3.24185]
set logscale y 10
set ytics ('0.02' 0.02, '' 0.03 1, '' 0.04 1, '0.05' 0.05, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '0.2' 0.2, '' 0.3 1, '' 0.4 1, '0.5' 0.5, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '2' 2, '' 3 1)
set yrange [0.0128266:3.24851]

plot 'forecast.csv' skip 1 every ::0::1 using 2:3 with lines lw 2.2 lc rgb '#0072B2' title 'equal', \
     'forecast.csv' skip 1 every ::2::11 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'kvp, tpot', \
     'forecast.csv' skip 1 every ::12::21 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'kvp, ttft', \
     'forecast.csv' skip 1 every ::22::25 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'kvr, tpot', \
     'forecast.csv' skip 1 every ::26::29 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'kvr, ttft', \
     'forecast.csv' skip 1 every ::30::35 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'lazyllm, tpot', \
     'forecast.csv' skip 1 every ::36::41 using 2:3 with points pt 5 ps 0.75 lc rgb '#555555' title 'lazyllm, ttft', \
     'forecast.csv' skip 1 every ::42::47 using 2:3 with points pt 9 ps 0.75 lc rgb '#0072B2' title 'mlkv, tpot', \
     'forecast.csv' skip 1 every ::48::53 using 2:3 with points pt 13 ps 0.75 lc rgb '#D55E00' title 'mlkv, ttft', \
     'forecast.csv' skip 1 every ::54::63 using 2:3 with points pt 11 ps 0.75 lc rgb '#009E73' title 'plain, tpot', \
     'forecast.csv' skip 1 every ::64::73 using 2:3 with points pt 7 ps 0.75 lc rgb '#CC79A7' title 'plain, ttft', \
     'forecast.csv' skip 1 every ::74::77 using 2:3 with points pt 5 ps 0.75 lc rgb '#E69F00' title 'random-prune, tpot', \
     'forecast.csv' skip 1 every ::78::81 using 2:3 with points pt 9 ps 0.75 lc rgb '#56B4E9' title 'random-prune, ttft', \
     'forecast.csv' skip 1 every ::82::85 using 2:3 with points pt 13 ps 0.75 lc rgb '#555555' title 'slim, tpot', \
     'forecast.csv' skip 1 every ::86::89 using 2:3 with points pt 11 ps 0.75 lc rgb '#0072B2' title 'slim, ttft', \
     'forecast.csv' skip 1 every ::90::99 using 2:3 with points pt 7 ps 0.75 lc rgb '#D55E00' title 'static-prune, tpot', \
     'forecast.csv' skip 1 every ::100::109 using 2:3 with points pt 5 ps 0.75 lc rgb '#009E73' title 'static-prune, ttft', \
     'forecast.csv' skip 1 every ::110::113 using 2:3 with points pt 9 ps 0.75 lc rgb '#CC79A7' title 'tsp, tpot', \
     'forecast.csv' skip 1 every ::114::117 using 2:3 with points pt 13 ps 0.75 lc rgb '#E69F00' title 'tsp, ttft'
