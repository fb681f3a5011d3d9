# Draws published-and-ours-errors.svg from published-and-ours-errors.csv: run `gnuplot published-and-ours-errors.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,620 background '#ffffff' font 'sans-serif,14' rounded
set output 'published-and-ours-errors.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'KV-Runahead: relative error of measured cells' at screen 0.09583, screen 0.95806 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.75161
set bmargin at screen 0.10645
set key at screen 0.08750, screen 0.93065 left top horizontal Left reverse samplen 2.2 spacing 1 width -4.918 maxcols 2 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'published (in the cell''s unit)' offset 0,0.55
set label 'ours / published - 1' at screen 0.01771, screen 0.42903 center rotate by 90
set logscale x 10
set xtics ('' 0.04 1, '' 0.05 1, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '' 0.2 1, '' 0.3 1, '' 0.4 1, '' 0.5 1, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '' 2 1, '' 3 1, '' 4 1, '' 5 1, '' 6 1, '' 7 1, '' 8 1, '' 9 1, '10' 10, '' 20 1, '' 30 1, '' 40 1, '' 50 1, '' 60 1, '' 70 1, '' 80 1, '' 90 1, '100' 100, '' 200 1, '' 300 1, '' 400 1, '' 500 1, '' 600 1, '' 700 1, '' 800 1, '' 900 1, '1000' 1000, '' 2000 1, '' 3000 1, '' 4000 1, '' 5000 1, '' 6000 1, '' 7000 1, '' 8000 1, '' 9000 1, '10000' 10000)
set xrange [0.032935:17722.2]
set yrange [-0.191463:0.202324]

plot 'published-and-ours-errors.csv' skip 1 every ::0::4 using 2:3 with points pt 7 ps 0.75 lc rgb '#0072B2' title 'kvr-table3-base, measured', \
     'published-and-ours-errors.csv' skip 1 every ::5::52 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'kvr-table1, measured', \
     'published-and-ours-errors.csv' skip 1 every ::53::76 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'kvr-table1-speedups, measured', \
     'published-and-ours-errors.csv' skip 1 every ::77::100 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'kvr-table2, measured', \
     'published-and-ours-errors.csv' skip 1 every ::101::112 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'kvr-table2-speedups, measured', \
     'published-and-ours-errors.csv' skip 1 every ::113::122 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'kvr-table3-10gbs, measured', \
     'published-and-ours-errors.csv' skip 1 every ::123::130 using 2:3 with points pt 5 ps 0.75 lc rgb '#555555' title 'kvr-figures, measured', \
     'published-and-ours-errors.csv' skip 1 every ::131::134 using 2:3 with points pt 9 ps 0.75 lc rgb '#0072B2' title 'kvr-partition, measured', \
     'published-and-ours-errors.csv' skip 1 every ::135::144 using 2:3 with points pt 13 ps 0.75 lc rgb '#D55E00' title 'kvr-prose, measured', \
     'published-and-ours-errors.csv' skip 1 every ::145::145 using (0.032935):3:(17722.1):(0) with vectors nohead lw 1.8 dt (9,5) lc rgb '#222222' title 'exact'
