# Draws quality.svg from quality.csv: run `gnuplot quality.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,683 background '#ffffff' font 'sans-serif,14' rounded
set output 'quality.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'Texts: distance from the base model' at screen 0.09583, screen 0.96193 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.68228
set bmargin at screen 0.09663
set key at screen 0.08750, screen 0.93704 left top horizontal Left reverse samplen 2.2 spacing 1 width -10.02 maxcols 1 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'TTFT, measured (s)' offset 0,0.55
set label 'KL(base || method) per token (nats)' at screen 0.01771, screen 0.38946 center rotate by 90
set xrange [0:1.60305]
set logscale y 10
set ytics ('' 0.03 1, '' 0.04 1, '0.05' 0.05, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '0.2' 0.2, '' 0.3 1, '' 0.4 1, '0.5' 0.5, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '2' 2)
set yrange [0.0228872:2.16482]

plot 'quality.csv' skip 1 every ::0::5 using 2:3 with lines lw 2.2 dt (9,6) lc rgb '#0072B2' title 'Pareto front', \
     'quality.csv' skip 1 every ::6::9 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'specprefill:speculator=lp-0.50', \
     'quality.csv' skip 1 every ::10::13 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'specprefill', \
     'quality.csv' skip 1 every ::14::17 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'random-prune', \
     'quality.csv' skip 1 every ::18::21 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'static-prune', \
     'quality.csv' skip 1 every ::22::25 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'lazyllm', \
     'quality.csv' skip 1 every ::26::29 using 2:3 with points pt 5 ps 0.75 lc rgb '#555555' title 'kvp', \
     'quality.csv' skip 1 every ::30::33 using 2:3 with points pt 9 ps 0.75 lc rgb '#0072B2' title 'static-prune+kvp:auxiliary=lp-0.75,predictor=maps-0.75'
