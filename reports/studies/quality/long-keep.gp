# Draws long-keep.svg from long-keep.csv: run `gnuplot long-keep.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'long-keep.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'KL divergence over the share kept' at screen 0.09583, screen 0.95667 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.81333
set bmargin at screen 0.11000
set key at screen 0.08750, screen 0.92833 left top horizontal Left reverse samplen 2.2 spacing 1 width -5.122 maxcols 2 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'keep rate (kvp: share of layers)' offset 0,0.55
set label 'KL(base || method) per token (nats)' at screen 0.01771, screen 0.46167 center rotate by 90
set xrange [0:0.525]
set logscale y 10
set ytics ('0.05' 0.05, '' 0.06 1, '' 0.07 1, '' 0.08 1, '' 0.09 1, '0.1' 0.1, '0.2' 0.2, '' 0.3 1, '' 0.4 1, '0.5' 0.5, '' 0.6 1, '' 0.7 1, '' 0.8 1, '' 0.9 1, '1' 1)
set yrange [0.0463981:1.46422]

plot 'long-keep.csv' skip 1 every ::0::2 using 2:3 with lines lw 2.2 lc rgb '#0072B2' title 'specprefill:speculator=lp-0.50', \
     'long-keep.csv' skip 1 every ::3::5 using 2:3 with lines lw 2.2 lc rgb '#D55E00' title 'specprefill', \
     'long-keep.csv' skip 1 every ::6::8 using 2:3 with lines lw 2.2 lc rgb '#009E73' title 'random-prune', \
     'long-keep.csv' skip 1 every ::9::11 using 2:3 with lines lw 2.2 lc rgb '#CC79A7' title 'static-prune', \
     'long-keep.csv' skip 1 every ::12::14 using 2:3 with lines lw 2.2 lc rgb '#E69F00' title 'lazyllm'
