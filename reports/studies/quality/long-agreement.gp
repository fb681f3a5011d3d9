# Draws long-agreement.svg from long-agreement.csv: run `gnuplot long-agreement.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'long-agreement.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'Texts: same next token as the base model' at screen 0.09583, screen 0.95667 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.81333
set bmargin at screen 0.11000
set key at screen 0.08750, screen 0.92833 left top horizontal Left reverse samplen 2.2 spacing 1 width -5.122 maxcols 2 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'TTFT, measured (s)' offset 0,0.55
set label 'share of positions' at screen 0.01771, screen 0.46167 center rotate by 90
set xrange [0:5.12331]
set yrange [0:1.05]

plot 'long-agreement.csv' skip 1 every ::0::0 using 2:3 with points pt 7 ps 0.75 lc rgb '#0072B2' title 'plain', \
     'long-agreement.csv' skip 1 every ::1::3 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'specprefill:speculator=lp-0.50', \
     'long-agreement.csv' skip 1 every ::4::6 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'specprefill', \
     'long-agreement.csv' skip 1 every ::7::9 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'random-prune', \
     'long-agreement.csv' skip 1 every ::10::12 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'static-prune', \
     'long-agreement.csv' skip 1 every ::13::15 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'lazyllm'
