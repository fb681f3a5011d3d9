# Draws smollm2-135m-forecast.svg from smollm2-135m-forecast.csv: run `gnuplot smollm2-135m-forecast.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'smollm2-135m-forecast.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'Predicted and measured times' at screen 0.09583, screen 0.95667 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.88333
set bmargin at screen 0.11000
set key at screen 0.08750, screen 0.92833 left top horizontal Left reverse samplen 2.2 spacing 1 width -1.245 maxcols 5 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'measured (s)' offset 0,0.55
set label 'predicted (s)' at screen 0.01771, screen 0.49667 center rotate by 90
set logscale x 10
set xtics ('0.02' 0.02, '' 0.03 1, '' 0.04 1, '0.05' 0.05, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '0.2' 0.2, '' 0.3 1, '' 0.4 1, '0.5' 0.5, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1)
set xrange [0.0126763:1.5116]
set logscale y 10
set ytics ('0.02' 0.02, '' 0.03 1, '' 0.04 1, '0.05' 0.05, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '0.2' 0.2, '' 0.3 1, '' 0.4 1, '0.5' 0.5, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1)
set yrange [0.0126763:1.5116]

plot 'smollm2-135m-forecast.csv' skip 1 every ::0::1 using 2:3 with lines lw 2.2 lc rgb '#0072B2' title 'equal', \
     'smollm2-135m-forecast.csv' skip 1 every ::2::4 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'plain, tpot', \
     'smollm2-135m-forecast.csv' skip 1 every ::5::10 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'plain, ttft'
