# title: SpecPrefill: relative error of measured cells
# Draws published-and-ours-errors.svg from published-and-ours-errors.csv: run `gnuplot published-and-ours-errors.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'published-and-ours-errors.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set title 'SpecPrefill: relative error of measured cells' font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
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

plot 'published-and-ours-errors.csv' skip 1 every ::0::0 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'specprefill-flops-ratio, measured', \
     'published-and-ours-errors.csv' skip 1 every ::1::8 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'specprefill-ttft, measured', \
     'published-and-ours-errors.csv' skip 1 every ::9::56 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'specprefill-serving, measured', \
     'published-and-ours-errors.csv' skip 1 every ::57::57 using (0):3:(1):(0) axes x2y1 with vectors nohead lw 1.8 dt (9,5) lc rgb '#222222' title 'exact'
