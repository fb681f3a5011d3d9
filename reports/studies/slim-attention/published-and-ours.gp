# Draws published-and-ours.svg from published-and-ours.csv: run `gnuplot published-and-ours.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'published-and-ours.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'Slim attention: published numbers and ours' at screen 0.09583, screen 0.95667 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.88333
set bmargin at screen 0.11000
set key at screen 0.08750, screen 0.92833 left top horizontal Left reverse samplen 2.2 spacing 1 width -2.265 maxcols 4 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'published (in the cell''s unit)' offset 0,0.55
set label 'ours (in the cell''s unit)' at screen 0.01771, screen 0.49667 center rotate by 90
set logscale x 10
set xtics ('' 0.1 1, '1' 1, '' 10 1, '100' 100, '' 1000 1, '10000' 10000, '' 100000 1, '1e6' 1e+06, '' 1e+07 1, '1e8' 1e+08, '' 1e+09 1, '1e10' 1e+10, '' 1e+11 1, '1e12' 1e+12, '' 1e+13 1)
set xrange [0.0941355:1.07751e+13]
set logscale y 10
set ytics ('' 0.1 1, '1' 1, '' 10 1, '100' 100, '' 1000 1, '10000' 10000, '' 100000 1, '1e6' 1e+06, '' 1e+07 1, '1e8' 1e+08, '' 1e+09 1, '1e10' 1e+10, '' 1e+11 1, '1e12' 1e+12, '' 1e+13 1)
set yrange [0.0940391:1.07757e+13]

plot 'published-and-ours.csv' skip 1 every ::0::1 using 2:3 with lines lw 2.2 lc rgb '#0072B2' title 'equal', \
     'published-and-ours.csv' skip 1 every ::2::307 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'exact cells', \
     'published-and-ours.csv' skip 1 every ::308::315 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'misprinted cells'
