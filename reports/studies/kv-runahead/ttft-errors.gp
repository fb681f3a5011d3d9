# title: KV-Runahead: relative error of measured cells
# Draws ttft-errors.svg from ttft-errors.csv: run `gnuplot ttft-errors.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'ttft-errors.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set title 'KV-Runahead: relative error of measured cells' font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set xlabel 'published (in the cell''s unit)'."\n".''
set ylabel 'ours / published - 1'
set key below left horizontal Left reverse samplen 2.2 spacing 1.2
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set logscale x 10
set yrange [*<0:*]
set offsets 0, 0, 0, 0
set x2range [0:1]

plot 'ttft-errors.csv' skip 1 every ::0::4 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'kvr-table3-base, measured', \
     'ttft-errors.csv' skip 1 every ::5::52 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'kvr-table1, measured', \
     'ttft-errors.csv' skip 1 every ::53::76 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'kvr-table2, measured', \
     'ttft-errors.csv' skip 1 every ::77::86 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'kvr-table3-10gbs, measured', \
     'ttft-errors.csv' skip 1 every ::87::87 using (0):3:(1):(0) axes x2y1 with vectors nohead lw 1.8 dt (9,5) lc rgb '#222222' title 'exact'
