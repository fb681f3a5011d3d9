# Draws m2-pro.svg from m2-pro.csv: run `gnuplot m2-pro.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'm2-pro.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'Predicted and measured times' at screen 0.09583, screen 0.95667 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.84833
set bmargin at screen 0.11000
set key at screen 0.08750, screen 0.92833 left top horizontal Left reverse samplen 2.2 spacing 1 width -2.673 maxcols 4 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'measured (s)' offset 0,0.55
set label 'predicted (s)' at screen 0.01771, screen 0.47917 center rotate by 90
set logscale x 10
set xtics ('2' 2, '3' 3, '4' 4, '5' 5, '6' 6, '7' 7)
set xrange [1.26075:7.40453]
set logscale y 10
set ytics ('2' 2, '3' 3, '4' 4, '5' 5, '6' 6, '7' 7)
set yrange [1.25785:7.38749]

plot 'm2-pro.csv' skip 1 every ::0::1 using 2:3 with lines lw 2.2 lc rgb '#0072B2' title 'equal', \
     'm2-pro.csv' skip 1 every ::2::6 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'kvp, ttft', \
     'm2-pro.csv' skip 1 every ::7::17 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'lazyllm, ttft', \
     'm2-pro.csv' skip 1 every ::18::20 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'plain, ttft', \
     'm2-pro.csv' skip 1 every ::21::22 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'random-prune, ttft', \
     'm2-pro.csv' skip 1 every ::23::24 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'static-prune, ttft'
