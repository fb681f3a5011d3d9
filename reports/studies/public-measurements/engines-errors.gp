# title: Relative error of predicted times
# Draws engines-errors.svg from engines-errors.csv: run `gnuplot engines-errors.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'engines-errors.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set title 'Relative error of predicted times' font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set xlabel 'measured (s)'."\n".''
set ylabel 'predicted / measured - 1'
set key below left horizontal Left reverse samplen 2.2 spacing 1.2
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set logscale x 10
set yrange [*<0:*]
set offsets 0, 0, 0, 0
set x2range [0:1]

plot 'engines-errors.csv' skip 1 every ::0::382 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'plain, request', \
     'engines-errors.csv' skip 1 every ::383::661 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'plain, tpot', \
     'engines-errors.csv' skip 1 every ::662::838 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'plain, ttft', \
     'engines-errors.csv' skip 1 every ::839::839 using (0):3:(1):(0) axes x2y1 with vectors nohead lw 1.8 dt (9,5) lc rgb '#222222' title 'exact'
