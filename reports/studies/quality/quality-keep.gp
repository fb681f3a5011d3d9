# title: KL divergence over the share kept
# Draws quality-keep.svg from quality-keep.csv: run `gnuplot quality-keep.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,700 background '#ffffff' font 'sans-serif,14' rounded
set output 'quality-keep.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set title 'KL divergence over the share kept' font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set xlabel 'keep rate (kvp: share of layers)'."\n".''
set ylabel 'KL(base || method) per token (nats)'
set key below left horizontal Left reverse samplen 2.2 spacing 1.2
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xrange [*<0:*]
set logscale y 10
set offsets 0, 0, 0, 0

plot 'quality-keep.csv' skip 1 every ::0::3 using 2:3 with lines lw 2.2 lc rgb '#0072B2' title 'specprefill:speculator=lp-0.50', \
     'quality-keep.csv' skip 1 every ::4::7 using 2:3 with lines lw 2.2 lc rgb '#D55E00' title 'specprefill', \
     'quality-keep.csv' skip 1 every ::8::11 using 2:3 with lines lw 2.2 lc rgb '#009E73' title 'random-prune', \
     'quality-keep.csv' skip 1 every ::12::15 using 2:3 with lines lw 2.2 lc rgb '#CC79A7' title 'static-prune', \
     'quality-keep.csv' skip 1 every ::16::19 using 2:3 with lines lw 2.2 lc rgb '#E69F00' title 'lazyllm', \
     'quality-keep.csv' skip 1 every ::20::23 using 2:3 with lines lw 2.2 lc rgb '#56B4E9' title 'kvp:auxiliary=lp-{keep},predictor=maps-{keep}', \
     'quality-keep.csv' skip 1 every ::24::27 using 2:3 with lines lw 2.2 lc rgb '#555555' title 'kvp:auxiliary=trained-{keep},predictor=predictor', \
     'quality-keep.csv' skip 1 every ::28::31 using 2:3 with lines lw 2.2 dt (9,6) lc rgb '#0072B2' title 'static-prune+kvp:auxiliary=trained-0.75,predictor=predictor'
