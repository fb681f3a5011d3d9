# title: Texts: distance from the base model
# Draws quality-memory.svg from quality-memory.csv: run `gnuplot quality-memory.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,720 background '#ffffff' font 'sans-serif,14' rounded
set output 'quality-memory.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set title 'Texts: distance from the base model' font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set xlabel 'weights and cache (MB)'."\n".''
set ylabel 'KL(base || method) per token (nats)'
set key below left horizontal Left reverse samplen 2.2 spacing 1.2
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xrange [0:*]
set logscale y 10
set offsets 0, 0, 0, 0

plot 'quality-memory.csv' skip 1 every ::0::4 using 2:3 with lines lw 2.2 dt (9,6) lc rgb '#0072B2' title 'Pareto front', \
     'quality-memory.csv' skip 1 every ::5::8 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'specprefill:speculator=lp-0.50', \
     'quality-memory.csv' skip 1 every ::9::12 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'specprefill', \
     'quality-memory.csv' skip 1 every ::13::16 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'random-prune', \
     'quality-memory.csv' skip 1 every ::17::20 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'static-prune', \
     'quality-memory.csv' skip 1 every ::21::24 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'lazyllm', \
     'quality-memory.csv' skip 1 every ::25::28 using 2:3 with points pt 5 ps 0.75 lc rgb '#555555' title 'kvp:auxiliary=lp-{keep},predictor=maps-{keep}', \
     'quality-memory.csv' skip 1 every ::29::32 using 2:3 with points pt 9 ps 0.75 lc rgb '#0072B2' title 'kvp:auxiliary=trained-{keep},predictor=predictor', \
     'quality-memory.csv' skip 1 every ::33::36 using 2:3 with points pt 13 ps 0.75 lc rgb '#D55E00' title 'static-prune+kvp:auxiliary=trained-0.75,predictor=predictor'
