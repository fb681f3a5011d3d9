# Draws ttft-errors.svg from ttft-errors.csv: run `gnuplot ttft-errors.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'ttft-errors.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'KV-Runahead: relative error of measured cells' at screen 0.09583, screen 0.95667 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.84833
set bmargin at screen 0.11000
set key at screen 0.08750, screen 0.92833 left top horizontal Left reverse samplen 2.2 spacing 1 width -4.306 maxcols 3 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'published (in the cell''s unit)' offset 0,0.55
set label 'ours / published - 1' at screen 0.01771, screen 0.47917 center rotate by 90
set logscale x 10
set xtics ('0.05' 0.05, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '0.2' 0.2, '' 0.3 1, '' 0.4 1, '0.5' 0.5, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '2' 2, '' 3 1, '' 4 1)
set xrange [0.0486664:4.86989]
set yrange [-0.127205:0.199264]

plot 'ttft-errors.csv' skip 1 every ::0::4 using 2:3 with points pt 7 ps 0.75 lc rgb '#0072B2' title 'kvr-table3-base, measured', \
     'ttft-errors.csv' skip 1 every ::5::52 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'kvr-table1, measured', \
     'ttft-errors.csv' skip 1 every ::53::76 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'kvr-table2, measured', \
     'ttft-errors.csv' skip 1 every ::77::86 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'kvr-table3-10gbs, measured', \
     'ttft-errors.csv' skip 1 every ::87::87 using (0.0486664):3:(4.82123):(0) with vectors nohead lw 1.8 dt (9,5) lc rgb '#222222' title 'exact'
