# Draws quality-keep.svg from quality-keep.csv: run `gnuplot quality-keep.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,662 background '#ffffff' font 'sans-serif,14' rounded
set output 'quality-keep.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'KL divergence over the share kept' at screen 0.09583, screen 0.96073 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.70393
set bmargin at screen 0.09970
set key at screen 0.08750, screen 0.93505 left top horizontal Left reverse samplen 2.2 spacing 1 width -10.02 maxcols 1 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'keep rate (kvp: share of layers)' offset 0,0.55
set label 'KL(base || method) per token (nats)' at screen 0.01771, screen 0.40181 center rotate by 90
set xrange [0:0.7875]
set logscale y 10
set ytics ('' 0.03 1, '' 0.04 1, '0.05' 0.05, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '0.2' 0.2, '' 0.3 1, '' 0.4 1, '0.5' 0.5, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1, '2' 2)
set yrange [0.0228872:2.16482]

plot 'quality-keep.csv' skip 1 every ::0::3 using 2:3 with lines lw 2.2 lc rgb '#0072B2' title 'specprefill:speculator=lp-0.50', \
     'quality-keep.csv' skip 1 every ::4::7 using 2:3 with lines lw 2.2 lc rgb '#D55E00' title 'specprefill', \
     'quality-keep.csv' skip 1 every ::8::11 using 2:3 with lines lw 2.2 lc rgb '#009E73' title 'random-prune', \
     'quality-keep.csv' skip 1 every ::12::15 using 2:3 with lines lw 2.2 lc rgb '#CC79A7' title 'static-prune', \
     'quality-keep.csv' skip 1 every ::16::19 using 2:3 with lines lw 2.2 lc rgb '#E69F00' title 'lazyllm', \
     'quality-keep.csv' skip 1 every ::20::23 using 2:3 with lines lw 2.2 lc rgb '#56B4E9' title 'kvp', \
     'quality-keep.csv' skip 1 every ::24::27 using 2:3 with lines lw 2.2 lc rgb '#555555' title 'static-prune+kvp:auxiliary=lp-0.75,predictor=maps-0.75'
