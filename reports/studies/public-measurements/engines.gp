# title: Predicted and measured times
# Draws engines.svg from engines.csv: run `gnuplot engines.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'engines.svg'
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

plot 'engines.csv' skip 1 every ::0::1 using 2:3 with lines lw 2.2 lc rgb '#0072B2' title 'equal', \
     'engines.csv' skip 1 every ::2::384 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'plain, request', \
     'engines.csv' skip 1 every ::385::663 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'plain, tpot', \
     'engines.csv' skip 1 every ::664::840 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'plain, ttft'
