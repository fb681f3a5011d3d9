# Draws published-and-ours.svg from published-and-ours.csv: run `gnuplot published-and-ours.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'published-and-ours.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'MLKV: published numbers and ours' at screen 0.09583, screen 0.95667 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.84833
set bmargin at screen 0.11000
set key at screen 0.08750, screen 0.92833 left top horizontal Left reverse samplen 2.2 spacing 1 width -3.286 maxcols 3 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'published (in the cell''s unit)' offset 0,0.55
set label 'ours (in the cell''s unit)' at screen 0.01771, screen 0.47917 center rotate by 90
set logscale x 10
set xtics ('' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '' 0.2 1, '' 0.3 1, '' 0.4 1, '' 0.5 1, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '' 2 1, '' 3 1, '' 4 1, '' 5 1, '' 6 1, '' 7 1, '' 8 1, '' 9 1, '10' 10, '' 20 1, '' 30 1, '' 40 1, '' 50 1, '' 60 1, '' 70 1, '' 80 1, '' 90 1, '100' 100, '' 200 1, '' 300 1, '' 400 1, '' 500 1, '' 600 1, '' 700 1, '' 800 1, '' 900 1, '1000' 1000, '' 2000 1, '' 3000 1, '' 4000 1, '' 5000 1, '' 6000 1, '' 7000 1, '' 8000 1, '' 9000 1, '10000' 10000, '' 20000 1, '' 30000 1, '' 40000 1, '' 50000 1, '' 60000 1, '' 70000 1, '' 80000 1, '' 90000 1, '1e5' 100000, '' 200000 1, '' 300000 1, '' 400000 1, '' 500000 1, '' 600000 1, '' 700000 1, '' 800000 1, '' 900000 1, '1e6' 1e+06, '' 2e+06 1, '' 3e+06 1, '' 4e+06 1, '' 5e+06 1, '' 6e+06 1, '' 7e+06 1, '' 8e+06 1, '' 9e+06 1, '1e7' 1e+07, '' 2e+07 1, '' 3e+07 1, '' 4e+07 1, '' 5e+07 1, '' 6e+07 1, '' 7e+07 1, '' 8e+07 1, '' 9e+07 1, '1e8' 1e+08, '' 2e+08 1, '' 3e+08 1, '' 4e+08 1)
set xrange [0.0592135:4.56914e+08]
set logscale y 10
set ytics ('0.01' 0.01, '' 0.1 1, '1' 1, '' 10 1, '100' 100, '' 1000 1, '10000' 10000, '' 100000 1, '1e6' 1e+06, '' 1e+07 1, '1e8' 1e+08)
set yrange [0.00435793:5.17361e+08]

plot 'published-and-ours.csv' skip 1 every ::0::1 using 2:3 with lines lw 2.2 lc rgb '#0072B2' title 'equal', \
     'published-and-ours.csv' skip 1 every ::2::39 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'exact cells', \
     'published-and-ours.csv' skip 1 every ::40::48 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'misprinted cells', \
     'published-and-ours.csv' skip 1 every ::49::57 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'mlkv-memory, measured'
