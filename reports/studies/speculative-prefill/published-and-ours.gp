# title: SpecPrefill: published numbers and ours
# Draws published-and-ours.svg from published-and-ours.csv: run `gnuplot published-and-ours.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'published-and-ours.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set title 'SpecPrefill: published numbers and ours' font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set xlabel 'published (in the cell''s unit)'."\n".''
set ylabel 'ours (in the cell''s unit)'
set key below left horizontal Left reverse samplen 2.2 spacing 1.2
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set logscale x 10
set logscale y 10
set offsets 0, 0, 0, 0

plot 'published-and-ours.csv' skip 1 every ::0::1 using 2:3 with lines lw 2.2 lc rgb '#0072B2' title 'equal', \
     'published-and-ours.csv' skip 1 every ::2::85 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'exact cells', \
     'published-and-ours.csv' skip 1 every ::86::91 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'misprinted cells', \
     'published-and-ours.csv' skip 1 every ::92::92 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'specprefill-flops-ratio, measured', \
     'published-and-ours.csv' skip 1 every ::93::100 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'specprefill-ttft, measured', \
     'published-and-ours.csv' skip 1 every ::101::148 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'specprefill-serving, measured'
