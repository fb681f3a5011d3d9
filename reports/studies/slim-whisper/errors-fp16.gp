# Draws errors-fp16.svg from errors-fp16.csv: run `gnuplot errors-fp16.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'errors-fp16.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'whisper-base: error of computed keys and values, stored in fp16' at screen 0.09583, screen 0.95667 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.88333
set bmargin at screen 0.11000
set key at screen 0.08750, screen 0.92833 left top horizontal Left reverse samplen 2.2 spacing 1 width -1.245 maxcols 5 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'Layer' offset 0,0.55
set label 'Relative error' at screen 0.01771, screen 0.49667 center rotate by 90
set xtics ('0 self' 0, '0 cross' 1, '1 self' 2, '1 cross' 3, '2 self' 4, '2 cross' 5, '3 self' 6, '3 cross' 7, '4 self' 8, '4 cross' 9, '5 self' 10, '5 cross' 11)
set xrange [0:11.55]
set logscale y 10
set ytics ('0.0001' 0.0001, '' 0.0002 1, '' 0.0003 1, '' 0.0004 1, '' 0.0005 1, '' 0.0006 1, '' 0.0007 1, '' 0.0008 1, '' 0.0009 1, '0.001' 0.001, '' 0.002 1, '' 0.003 1, '' 0.004 1, '' 0.005 1, '' 0.006 1, '' 0.007 1, '' 0.008 1, '' 0.009 1, '0.01' 0.01, '' 0.02 1, '' 0.03 1, '' 0.04 1, '' 0.05 1, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '' 0.2 1, '' 0.3 1, '' 0.4 1, '' 0.5 1, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '' 2 1, '' 3 1, '' 4 1, '' 5 1, '' 6 1, '' 7 1, '' 8 1, '' 9 1, '10' 10, '' 20 1, '' 30 1, '' 40 1)
set yrange [9.109e-05:44.2065]

plot 'errors-fp16.csv' skip 1 every ::0::11 using 2:3 with points pt 7 ps 0.75 lc rgb '#0072B2' title 'kcache', \
     'errors-fp16.csv' skip 1 every ::12::23 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'vcache', \
     'errors-fp16.csv' skip 1 every ::24::35 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'xcache', \
     'errors-fp16.csv' skip 1 every ::36::36 using (0):3:(11.55):(0) with vectors nohead lw 1.8 dt (9,5) lc rgb '#222222' title '--max-error'
