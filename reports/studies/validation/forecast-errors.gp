# title: Relative error of predicted times
# Draws forecast-errors.svg from forecast-errors.csv: run `gnuplot forecast-errors.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,680 background '#ffffff' font 'sans-serif,14' rounded
set output 'forecast-errors.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set title 'Relative error of predicted times' font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set xlabel 'measured (s)'."\n".''
set ylabel 'predicted / measured - 1'
set key below left horizontal Left reverse samplen 2.2 spacing 1.2
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set logscale x 10
set yrange [*<0:*]
set offsets 0, 0, 0, 0
set x2range [0:1]

plot 'forecast-errors.csv' skip 1 every ::0::7 using 2:3 with points pt 7 ps 0.75 lc rgb '#0072B2' title 'kvp, tpot', \
     'forecast-errors.csv' skip 1 every ::8::15 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'kvp, ttft', \
     'forecast-errors.csv' skip 1 every ::16::23 using 2:3 with points pt 9 ps 0.75 lc rgb '#009E73' title 'kvr, tpot', \
     'forecast-errors.csv' skip 1 every ::24::31 using 2:3 with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'kvr, ttft', \
     'forecast-errors.csv' skip 1 every ::32::39 using 2:3 with points pt 11 ps 0.75 lc rgb '#E69F00' title 'lazyllm, tpot', \
     'forecast-errors.csv' skip 1 every ::40::47 using 2:3 with points pt 7 ps 0.75 lc rgb '#56B4E9' title 'lazyllm, ttft', \
     'forecast-errors.csv' skip 1 every ::48::55 using 2:3 with points pt 5 ps 0.75 lc rgb '#555555' title 'mlkv, tpot', \
     'forecast-errors.csv' skip 1 every ::56::63 using 2:3 with points pt 9 ps 0.75 lc rgb '#0072B2' title 'mlkv, ttft', \
     'forecast-errors.csv' skip 1 every ::64::71 using 2:3 with points pt 13 ps 0.75 lc rgb '#D55E00' title 'plain, tpot', \
     'forecast-errors.csv' skip 1 every ::72::79 using 2:3 with points pt 11 ps 0.75 lc rgb '#009E73' title 'plain, ttft', \
     'forecast-errors.csv' skip 1 every ::80::87 using 2:3 with points pt 7 ps 0.75 lc rgb '#CC79A7' title 'random-prune, tpot', \
     'forecast-errors.csv' skip 1 every ::88::95 using 2:3 with points pt 5 ps 0.75 lc rgb '#E69F00' title 'random-prune, ttft', \
     'forecast-errors.csv' skip 1 every ::96::99 using 2:3 with points pt 9 ps 0.75 lc rgb '#56B4E9' title 'slim, tpot', \
     'forecast-errors.csv' skip 1 every ::100::103 using 2:3 with points pt 13 ps 0.75 lc rgb '#555555' title 'slim, ttft', \
     'forecast-errors.csv' skip 1 every ::104::111 using 2:3 with points pt 11 ps 0.75 lc rgb '#0072B2' title 'specprefill, tpot', \
     'forecast-errors.csv' skip 1 every ::112::119 using 2:3 with points pt 7 ps 0.75 lc rgb '#D55E00' title 'specprefill, ttft', \
     'forecast-errors.csv' skip 1 every ::120::127 using 2:3 with points pt 5 ps 0.75 lc rgb '#009E73' title 'static-prune, tpot', \
     'forecast-errors.csv' skip 1 every ::128::135 using 2:3 with points pt 9 ps 0.75 lc rgb '#CC79A7' title 'static-prune, ttft', \
     'forecast-errors.csv' skip 1 every ::136::143 using 2:3 with points pt 13 ps 0.75 lc rgb '#E69F00' title 'tsp, tpot', \
     'forecast-errors.csv' skip 1 every ::144::151 using 2:3 with points pt 11 ps 0.75 lc rgb '#56B4E9' title 'tsp, ttft', \
     'forecast-errors.csv' skip 1 every ::152::152 using (0):3:(1):(0) axes x2y1 with vectors nohead lw 1.8 dt (9,5) lc rgb '#222222' title 'exact'
