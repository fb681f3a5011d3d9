# Draws tinyllama-1.1b-forecast-errors.svg from tinyllama-1.1b-forecast-errors.csv: run `gnuplot tinyllama-1.1b-forecast-errors.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'tinyllama-1.1b-forecast-errors.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'Relative error of predicted times' at screen 0.09583, screen 0.95667 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.88333
set bmargin at screen 0.11000
set key at screen 0.08750, screen 0.92833 left top horizontal Left reverse samplen 2.2 spacing 1 width -1.245 maxcols 5 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'measured (s)' offset 0,0.55
set label 'predicted / measured - 1' at screen 0.01771, screen 0.49667 center rotate by 90
set logscale x 10
set xtics ('' 0.09 1, '0.1' 0.1, '0.2' 0.2, '' 0.3 1, '' 0.4 1, '0.5' 0.5, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '2' 2, '' 3 1, '' 4 1, '5' 5, '' 6 1, '' 7 1, '' 8 1)
set xrange [0.0848613:8.98185]
set yrange [-0.0700863:0.0917714]

plot 'tinyllama-1.1b-forecast-errors.csv' skip 1 every ::0::2 using 2:3 with points pt 7 ps 0.75 lc rgb '#0072B2' title 'plain, tpot', \
     'tinyllama-1.1b-forecast-errors.csv' skip 1 every ::3::8 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'plain, ttft', \
     'tinyllama-1.1b-forecast-errors.csv' skip 1 every ::9::9 using (0.0848613):3:(8.89699):(0) with vectors nohead lw 1.8 dt (9,5) lc rgb '#222222' title 'exact'
