# title: Needles found in the haystack
# Draws quality-needle.svg from quality-needle.csv: run `gnuplot quality-needle.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,740 background '#ffffff' font 'sans-serif,14' rounded
set output 'quality-needle.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set title 'Needles found in the haystack' font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set xlabel 'TTFT, measured (s)'."\n".''
set ylabel 'share answered'
set key below left horizontal Left reverse samplen 2.2 spacing 1.2
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xrange [0:*]
set yrange [*<0:*]
set offsets 0, 0, 0, 0

plot 'quality-needle.csv' skip 1 every ::0::4 using 2:3 with lines lw 2.2 dt (9,6) lc rgb '#0072B2' title 'Pareto front', \
     'quality-needle.csv' skip 1 every ::5::5 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'plain', \
     'quality-needle.csv' skip 1 every ::6::9 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'specprefill:speculator=lp-0.50', \
     'quality-needle.csv' skip 1 every ::10::13 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'specprefill', \
     'quality-needle.csv' skip 1 every ::14::17 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'random-prune', \
     'quality-needle.csv' skip 1 every ::18::21 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'static-prune', \
     'quality-needle.csv' skip 1 every ::22::25 using 2:3 with points pt 5 ps 0.75 lc rgb '#555555' title 'lazyllm', \
     'quality-needle.csv' skip 1 every ::26::29 using 2:3 with points pt 9 ps 0.75 lc rgb '#0072B2' title 'kvp:auxiliary=lp-{keep},predictor=maps-{keep}', \
     'quality-needle.csv' skip 1 every ::30::33 using 2:3 with points pt 13 ps 0.75 lc rgb '#D55E00' title 'kvp:auxiliary=trained-{keep},predictor=predictor', \
     'quality-needle.csv' skip 1 every ::34::37 using 2:3 with points pt 11 ps 0.75 lc rgb '#009E73' title 'static-prune+kvp:auxiliary=trained-0.75,predictor=predictor'
