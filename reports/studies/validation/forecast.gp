# title: Predicted and measured times
# Draws forecast.svg from forecast.csv: run `gnuplot forecast.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,680 background '#ffffff' font 'sans-serif,14' rounded
set output 'forecast.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set title 'Predicted and measured times' font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set xlabel 'measured (s)'."\n".''
set ylabel 'predicted (s)'
set key below left horizontal Left reverse samplen 2.2 spacing 1.2
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set logscale x 10
set logscale y 10
set offsets 0, 0, 0, 0

plot 'forecast.csv' skip 1 every ::0::1 using 2:3 with lines lw 2.2 lc rgb '#0072B2' title 'equal', \
     'forecast.csv' skip 1 every ::2::9 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'kvp, tpot', \
     'forecast.csv' skip 1 every ::10::17 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'kvp, ttft', \
     'forecast.csv' skip 1 every ::18::25 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'kvr, tpot', \
     'forecast.csv' skip 1 every ::26::33 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'kvr, ttft', \
     'forecast.csv' skip 1 every ::34::41 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'lazyllm, tpot', \
     'forecast.csv' skip 1 every ::42::49 using 2:3 with points pt 5 ps 0.75 lc rgb '#555555' title 'lazyllm, ttft', \
     'forecast.csv' skip 1 every ::50::57 using 2:3 with points pt 9 ps 0.75 lc rgb '#0072B2' title 'mlkv, tpot', \
     'forecast.csv' skip 1 every ::58::65 using 2:3 with points pt 13 ps 0.75 lc rgb '#D55E00' title 'mlkv, ttft', \
     'forecast.csv' skip 1 every ::66::73 using 2:3 with points pt 11 ps 0.75 lc rgb '#009E73' title 'plain, tpot', \
     'forecast.csv' skip 1 every ::74::81 using 2:3 with points pt 7 ps 0.75 lc rgb '#CC79A7' title 'plain, ttft', \
     'forecast.csv' skip 1 every ::82::89 using 2:3 with points pt 5 ps 0.75 lc rgb '#E69F00' title 'random-prune, tpot', \
     'forecast.csv' skip 1 every ::90::97 using 2:3 with points pt 9 ps 0.75 lc rgb '#56B4E9' title 'random-prune, ttft', \
     'forecast.csv' skip 1 every ::98::101 using 2:3 with points pt 13 ps 0.75 lc rgb '#555555' title 'slim, tpot', \
     'forecast.csv' skip 1 every ::102::105 using 2:3 with points pt 11 ps 0.75 lc rgb '#0072B2' title 'slim, ttft', \
     'forecast.csv' skip 1 every ::106::113 using 2:3 with points pt 7 ps 0.75 lc rgb '#D55E00' title 'specprefill, tpot', \
     'forecast.csv' skip 1 every ::114::121 using 2:3 with points pt 5 ps 0.75 lc rgb '#009E73' title 'specprefill, ttft', \
     'forecast.csv' skip 1 every ::122::129 using 2:3 with points pt 9 ps 0.75 lc rgb '#CC79A7' title 'static-prune, tpot', \
     'forecast.csv' skip 1 every ::130::137 using 2:3 with points pt 13 ps 0.75 lc rgb '#E69F00' title 'static-prune, ttft', \
     'forecast.csv' skip 1 every ::138::145 using 2:3 with points pt 11 ps 0.75 lc rgb '#56B4E9' title 'tsp, tpot', \
     'forecast.csv' skip 1 every ::146::153 using 2:3 with points pt 7 ps 0.75 lc rgb '#555555' title 'tsp, ttft'
