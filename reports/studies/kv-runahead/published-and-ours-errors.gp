# title: KV-Runahead: relative error of measured cells
# Draws published-and-ours-errors.svg from published-and-ours-errors.csv: run `gnuplot published-and-ours-errors.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,640 background '#ffffff' font 'sans-serif,14' rounded
set output 'published-and-ours-errors.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set title 'KV-Runahead: relative error of measured cells' font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set xlabel 'published (in the cell''s unit)'."\n".''
set ylabel 'ours / published - 1'
set key below left horizontal Left reverse samplen 2.2 spacing 1.2
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set logscale x 10
set yrange [*<0:*]
set offsets 0, 0, 0, 0
set x2range [0:1]

plot 'published-and-ours-errors.csv' skip 1 every ::0::4 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'kvr-table3-base, measured', \
     'published-and-ours-errors.csv' skip 1 every ::5::52 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'kvr-table1, measured', \
     'published-and-ours-errors.csv' skip 1 every ::53::76 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'kvr-table1-speedups, measured', \
     'published-and-ours-errors.csv' skip 1 every ::77::100 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'kvr-table2, measured', \
     'published-and-ours-errors.csv' skip 1 every ::101::112 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'kvr-table2-speedups, measured', \
     'published-and-ours-errors.csv' skip 1 every ::113::122 using 2:3 with points pt 5 ps 0.75 lc rgb '#555555' title 'kvr-table3-10gbs, measured', \
     'published-and-ours-errors.csv' skip 1 every ::123::130 using 2:3 with points pt 9 ps 0.75 lc rgb '#0072B2' title 'kvr-figures, measured', \
     'published-and-ours-errors.csv' skip 1 every ::131::134 using 2:3 with points pt 13 ps 0.75 lc rgb '#D55E00' title 'kvr-partition, measured', \
     'published-and-ours-errors.csv' skip 1 every ::135::144 using 2:3 with points pt 11 ps 0.75 lc rgb '#009E73' title 'kvr-prose, measured', \
     'published-and-ours-errors.csv' skip 1 every ::145::145 using (0):3:(1):(0) axes x2y1 with vectors nohead lw 1.8 dt (9,5) lc rgb '#222222' title 'exact'
