# Draws published-and-ours-errors.svg from published-and-ours-errors.csv: run `gnuplot published-and-ours-errors.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'published-and-ours-errors.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set label 'SpecPrefill: relative error of measured cells' at screen 0.09583, screen 0.95667 left font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set lmargin at screen 0.09583
set rmargin at screen 0.97083
set tmargin at screen 0.84833
set bmargin at screen 0.11000
set key at screen 0.08750, screen 0.92833 left top horizontal Left reverse samplen 2.2 spacing 1 width -5.735 maxcols 2 textcolor rgb '#222222'
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xlabel 'published (in the cell''s unit)' offset 0,0.55
set label 'ours / published - 1' at screen 0.01771, screen 0.47917 center rotate by 90
set logscale x 10
set xtics ('4' 4, '5' 5, '6' 6, '7' 7, '8' 8, '9' 9, '10' 10)
set xrange [3.16079:18.5636]
set yrange [-0.064113:0.230345]

plot 'published-and-ours-errors.csv' skip 1 every ::0::0 using 2:3 with points pt 7 ps 0.75 lc rgb '#0072B2' title 'specprefill-flops-ratio, measured', \
     'published-and-ours-errors.csv' skip 1 every ::1::8 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'specprefill-ttft, measured', \
     'published-and-ours-errors.csv' skip 1 every ::9::9 using (3.16079):3:(15.4028):(0) with vectors nohead lw 1.8 dt (9,5) lc rgb '#222222' title 'exact'
