# Draws forecast-errors.svg from forecast-errors.csv: run `gnuplot forecast-errors.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,620 background '#ffffff' font 'sans-serif,14' rounded
set output 'forecast-errors.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'Relative error of predicted times' at screen 0.09583, screen 0.95806 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.75161
set bmargin at screen 0.10645
set key at screen 0.08750, screen 0.93065 left top horizontal Left reverse samplen 2.2 spacing 1 width -2.673 maxcols 4 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'measured (s)' offset 0,0.55
set label 'predicted / measured - 1' at screen 0.01771, screen 0.42903 center rotate by 90
set logscale x 10
set xtics ('0.02' 0.02, '' 0.03 1, '' 0.04 1, '0.05' 0.05, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '0.2' 0.2, '' 0.3 1, '' 0.4 1, '0.5' 0.5, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '2' 2, '' 3 1)
set xrange [0.0133917:3.24185]
set yrange [-0.212275:0.209312]

plot 'forecast-errors.csv' skip 1 every ::0::9 using 2:3 with points pt 7 ps 0.75 lc rgb '#0072B2' title 'kvp, tpot', \
     'forecast-errors.csv' skip 1 every ::10::19 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'kvp, ttft', \
     'forecast-errors.csv' skip 1 every ::20::23 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'kvr, tpot', \
     'forecast-errors.csv' skip 1 every ::24::27 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'kvr, ttft', \
     'forecast-errors.csv' skip 1 every ::28::33 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'lazyllm, tpot', \
     'forecast-errors.csv' skip 1 every ::34::39 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'lazyllm, ttft', \
     'forecast-errors.csv' skip 1 every ::40::45 using 2:3 with points pt 5 ps 0.75 lc rgb '#555555' title 'mlkv, tpot', \
     'forecast-errors.csv' skip 1 every ::46::51 using 2:3 with points pt 9 ps 0.75 lc rgb '#0072B2' title 'mlkv, ttft', \
     'forecast-errors.csv' skip 1 every ::52::61 using 2:3 with points pt 13 ps 0.75 lc rgb '#D55E00' title 'plain, tpot', \
     'forecast-errors.csv' skip 1 every ::62::71 using 2:3 with points pt 11 ps 0.75 lc rgb '#009E73' title 'plain, ttft', \
     'forecast-errors.csv' skip 1 every ::72::75 using 2:3 with points pt 7 ps 0.75 lc rgb '#CC79A7' title 'random-prune, tpot', \
     'forecast-errors.csv' skip 1 every ::76::79 using 2:3 with points pt 5 ps 0.75 lc rgb '#E69F00' title 'random-prune, ttft', \
     'forecast-errors.csv' skip 1 every ::80::83 using 2:3 with points pt 9 ps 0.75 lc rgb '#56B4E9' title 'slim, tpot', \
     'forecast-errors.csv' skip 1 every ::84::87 using 2:3 with points pt 13 ps 0.75 lc rgb '#555555' title 'slim, ttft', \
     'forecast-errors.csv' skip 1 every ::88::97 using 2:3 with points pt 11 ps 0.75 lc rgb '#0072B2' title 'static-prune, tpot', \
     'forecast-errors.csv' skip 1 every ::98::107 using 2:3 with points pt 7 ps 0.75 lc rgb '#D55E00' title 'static-prune, ttft', \
     'forecast-errors.csv' skip 1 every ::108::111 using 2:3 with points pt 5 ps 0.75 lc rgb '#009E73' title 'tsp, tpot', \
     'forecast-errors.csv' skip 1 every ::112::115 using 2:3 with points pt 9 ps 0.75 lc rgb '#CC79A7' title 'tsp, ttft', \
     'forecast-errors.csv' skip 1 every ::116::116 using (0.0133917):3:(3.22846):(0) with vectors nohead lw 1.8 dt (9,5) lc rgb '#222222' title 'exact'
