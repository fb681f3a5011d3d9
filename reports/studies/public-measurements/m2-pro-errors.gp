# Draws m2-pro-errors.svg from m2-pro-errors.csv: run `gnuplot m2-pro-errors.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'm2-pro-errors.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'Relative error of predicted times' at screen 0.09583, screen 0.95667 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.84833
set bmargin at screen 0.11000
set key at screen 0.08750, screen 0.92833 left top horizontal Left reverse samplen 2.2 spacing 1 width -2.673 maxcols 4 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'measured (s)' offset 0,0.55
set label 'predicted / measured - 1' at screen 0.01771, screen 0.47917 center rotate by 90
set logscale x 10
set xtics ('2' 2, '3' 3, '4' 4, '5' 5, '6' 6, '7' 7)
set xrange [1.26075:7.40453]
set yrange [-0.282531:0.0288243]

plot 'm2-pro-errors.csv' skip 1 every ::0::4 using 2:3 with points pt 7 ps 0.75 lc rgb '#0072B2' title 'kvp, ttft', \
     'm2-pro-errors.csv' skip 1 every ::5::15 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'lazyllm, ttft', \
     'm2-pro-errors.csv' skip 1 every ::16::18 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'plain, ttft', \
     'm2-pro-errors.csv' skip 1 every ::19::20 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'random-prune, ttft', \
     'm2-pro-errors.csv' skip 1 every ::21::22 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'static-prune, ttft', \
     'm2-pro-errors.csv' skip 1 every ::23::23 using (1.26075):3:(6.14378):(0) with vectors nohead lw 1.8 dt (9,5) lc rgb '#222222' title 'exact'
