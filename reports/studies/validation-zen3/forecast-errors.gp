# Draws forecast-errors.svg from forecast-errors.csv: run `gnuplot forecast-errors.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,641 background '#ffffff' font 'sans-serif,14' rounded
set output 'forecast-errors.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'Relative error of predicted times' at screen 0.09583, screen 0.95944 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.72699
set bmargin at screen 0.10296
set key at screen 0.08750, screen 0.93292 left top horizontal Left reverse samplen 2.2 spacing 1 width -2.673 maxcols 4 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'measured (s)' offset 0,0.55
set label 'predicted / measured - 1' at screen 0.01771, screen 0.41498 center rotate by 90
set logscale x 10
set xtics ('0.02' 0.02, '' 0.03 1, '' 0.04 1, '0.05' 0.05, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '0.2' 0.2, '' 0.3 1, '' 0.4 1, '0.5' 0.5, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '2' 2, '' 3 1)
set xrange [0.0128774:3.94335]
set yrange [-0.255305:0.110523]

plot 'forecast-errors.csv' skip 1 every ::0::17 using 2:3 with points pt 7 ps 0.75 lc rgb '#0072B2' title 'kvp, tpot', \
     'forecast-errors.csv' skip 1 every ::18::35 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'kvp, ttft', \
     'forecast-errors.csv' skip 1 every ::36::47 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'kvr, tpot', \
     'forecast-errors.csv' skip 1 every ::48::59 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'kvr, ttft', \
     'forecast-errors.csv' skip 1 every ::60::73 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'lazyllm, tpot', \
     'forecast-errors.csv' skip 1 every ::74::87 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'lazyllm, ttft', \
     'forecast-errors.csv' skip 1 every ::88::101 using 2:3 with points pt 5 ps 0.75 lc rgb '#555555' title 'mlkv, tpot', \
     'forecast-errors.csv' skip 1 every ::102::115 using 2:3 with points pt 9 ps 0.75 lc rgb '#0072B2' title 'mlkv, ttft', \
     'forecast-errors.csv' skip 1 every ::116::133 using 2:3 with points pt 13 ps 0.75 lc rgb '#D55E00' title 'plain, tpot', \
     'forecast-errors.csv' skip 1 every ::134::151 using 2:3 with points pt 11 ps 0.75 lc rgb '#009E73' title 'plain, ttft', \
     'forecast-errors.csv' skip 1 every ::152::163 using 2:3 with points pt 7 ps 0.75 lc rgb '#CC79A7' title 'random-prune, tpot', \
     'forecast-errors.csv' skip 1 every ::164::175 using 2:3 with points pt 5 ps 0.75 lc rgb '#E69F00' title 'random-prune, ttft', \
     'forecast-errors.csv' skip 1 every ::176::183 using 2:3 with points pt 9 ps 0.75 lc rgb '#56B4E9' title 'slim, tpot', \
     'forecast-errors.csv' skip 1 every ::184::191 using 2:3 with points pt 13 ps 0.75 lc rgb '#555555' title 'slim, ttft', \
     'forecast-errors.csv' skip 1 every ::192::199 using 2:3 with points pt 11 ps 0.75 lc rgb '#0072B2' title 'specprefill, tpot', \
     'forecast-errors.csv' skip 1 every ::200::207 using 2:3 with points pt 7 ps 0.75 lc rgb '#D55E00' title 'specprefill, ttft', \
     'forecast-errors.csv' skip 1 every ::208::225 using 2:3 with points pt 5 ps 0.75 lc rgb '#009E73' title 'static-prune, tpot', \
     'forecast-errors.csv' skip 1 every ::226::243 using 2:3 with points pt 9 ps 0.75 lc rgb '#CC79A7' title 'static-prune, ttft', \
     'forecast-errors.csv' skip 1 every ::244::255 using 2:3 with points pt 13 ps 0.75 lc rgb '#E69F00' title 'tsp, tpot', \
     'forecast-errors.csv' skip 1 every ::256::267 using 2:3 with points pt 11 ps 0.75 lc rgb '#56B4E9' title 'tsp, ttft', \
     'forecast-errors.csv' skip 1 every ::268::268 using (0.0128774):3:(3.93047):(0) with vectors nohead lw 1.8 dt (9,5) lc rgb '#222222' title 'exact'
