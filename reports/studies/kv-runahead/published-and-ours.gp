# Draws published-and-ours.svg from published-and-ours.csv: run `gnuplot published-and-ours.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,641 background '#ffffff' font 'sans-serif,14' rounded
set output 'published-and-ours.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'KV-Runahead: published numbers and ours' at screen 0.09583, screen 0.95944 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.72699
set bmargin at screen 0.10296
set key at screen 0.08750, screen 0.93292 left top horizontal Left reverse samplen 2.2 spacing 1 width -4.918 maxcols 2 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'published (in the cell''s unit)' offset 0,0.55
set label 'ours (in the cell''s unit)' at screen 0.01771, screen 0.41498 center rotate by 90
set logscale x 10
set xtics ('' 0.03 1, '' 0.04 1, '' 0.05 1, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '' 0.2 1, '' 0.3 1, '' 0.4 1, '' 0.5 1, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '' 2 1, '' 3 1, '' 4 1, '' 5 1, '' 6 1, '' 7 1, '' 8 1, '' 9 1, '10' 10, '' 20 1, '' 30 1, '' 40 1, '' 50 1, '' 60 1, '' 70 1, '' 80 1, '' 90 1, '100' 100, '' 200 1, '' 300 1, '' 400 1, '' 500 1, '' 600 1, '' 700 1, '' 800 1, '' 900 1, '1000' 1000, '' 2000 1, '' 3000 1, '' 4000 1, '' 5000 1, '' 6000 1, '' 7000 1, '' 8000 1, '' 9000 1, '10000' 10000, '' 20000 1, '' 30000 1, '' 40000 1, '' 50000 1, '' 60000 1, '' 70000 1, '' 80000 1, '' 90000 1, '1e5' 100000, '' 200000 1, '' 300000 1, '' 400000 1, '' 500000 1, '' 600000 1, '' 700000 1, '' 800000 1, '' 900000 1, '1e6' 1e+06, '' 2e+06 1, '' 3e+06 1, '' 4e+06 1, '' 5e+06 1, '' 6e+06 1, '' 7e+06 1, '' 8e+06 1, '' 9e+06 1, '1e7' 1e+07, '' 2e+07 1, '' 3e+07 1, '' 4e+07 1, '' 5e+07 1, '' 6e+07 1, '' 7e+07 1, '' 8e+07 1, '' 9e+07 1, '1e8' 1e+08, '' 2e+08 1)
set xrange [0.020733:2.94727e+08]
set logscale y 10
set ytics ('' 0.03 1, '' 0.04 1, '' 0.05 1, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '' 0.2 1, '' 0.3 1, '' 0.4 1, '' 0.5 1, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '' 2 1, '' 3 1, '' 4 1, '' 5 1, '' 6 1, '' 7 1, '' 8 1, '' 9 1, '10' 10, '' 20 1, '' 30 1, '' 40 1, '' 50 1, '' 60 1, '' 70 1, '' 80 1, '' 90 1, '100' 100, '' 200 1, '' 300 1, '' 400 1, '' 500 1, '' 600 1, '' 700 1, '' 800 1, '' 900 1, '1000' 1000, '' 2000 1, '' 3000 1, '' 4000 1, '' 5000 1, '' 6000 1, '' 7000 1, '' 8000 1, '' 9000 1, '10000' 10000, '' 20000 1, '' 30000 1, '' 40000 1, '' 50000 1, '' 60000 1, '' 70000 1, '' 80000 1, '' 90000 1, '1e5' 100000, '' 200000 1, '' 300000 1, '' 400000 1, '' 500000 1, '' 600000 1, '' 700000 1, '' 800000 1, '' 900000 1, '1e6' 1e+06, '' 2e+06 1, '' 3e+06 1, '' 4e+06 1, '' 5e+06 1, '' 6e+06 1, '' 7e+06 1, '' 8e+06 1, '' 9e+06 1, '1e7' 1e+07, '' 2e+07 1, '' 3e+07 1, '' 4e+07 1, '' 5e+07 1, '' 6e+07 1, '' 7e+07 1, '' 8e+07 1, '' 9e+07 1, '1e8' 1e+08, '' 2e+08 1)
set yrange [0.020733:2.94727e+08]

plot 'published-and-ours.csv' skip 1 every ::0::1 using 2:3 with lines lw 2.2 lc rgb '#0072B2' title 'equal', \
     'published-and-ours.csv' skip 1 every ::2::36 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'exact cells', \
     'published-and-ours.csv' skip 1 every ::37::37 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'misprinted cells', \
     'published-and-ours.csv' skip 1 every ::38::42 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'kvr-table3-base, measured', \
     'published-and-ours.csv' skip 1 every ::43::90 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'kvr-table1, measured', \
     'published-and-ours.csv' skip 1 every ::91::114 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'kvr-table1-speedups, measured', \
     'published-and-ours.csv' skip 1 every ::115::138 using 2:3 with points pt 5 ps 0.75 lc rgb '#555555' title 'kvr-table2, measured', \
     'published-and-ours.csv' skip 1 every ::139::150 using 2:3 with points pt 9 ps 0.75 lc rgb '#0072B2' title 'kvr-table2-speedups, measured', \
     'published-and-ours.csv' skip 1 every ::151::160 using 2:3 with points pt 13 ps 0.75 lc rgb '#D55E00' title 'kvr-table3-10gbs, measured', \
     'published-and-ours.csv' skip 1 every ::161::168 using 2:3 with points pt 11 ps 0.75 lc rgb '#009E73' title 'kvr-figures, measured', \
     'published-and-ours.csv' skip 1 every ::169::172 using 2:3 with points pt 7 ps 0.75 lc rgb '#CC79A7' title 'kvr-partition, measured', \
     'published-and-ours.csv' skip 1 every ::173::182 using 2:3 with points pt 5 ps 0.75 lc rgb '#E69F00' title 'kvr-prose, measured'
