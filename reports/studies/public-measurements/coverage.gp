# title: How often error bounds hold
# Draws coverage.svg from coverage.csv: run `gnuplot coverage.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'coverage.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set title 'How often error bounds hold' font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set xlabel 'median error bound (%)'."\n".'each row against bounds from the rows of other sources'."\n".''
set ylabel 'rows within their bound (%)'
set key below left horizontal Left reverse samplen 2.2 spacing 1.2
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xrange [*<0:*]
set yrange [*<0:*]
set offsets 0, 0, 0, 0
set x2range [0:1]

plot 'coverage.csv' skip 1 every ::0::0 using ($2/0.01):($3/0.01) with points pt 7 ps 0.75 lc rgb '#0072B2' title 'prefill under 512 tokens, 19 rows', \
     'coverage.csv' skip 1 every ::1::1 using ($2/0.01):($3/0.01) with points pt 5 ps 0.75 lc rgb '#D55E00' title 'prefill of 512 and more tokens, 189 rows', \
     'coverage.csv' skip 1 every ::2::2 using ($2/0.01):($3/0.01) with points pt 9 ps 0.75 lc rgb '#009E73' title 'decode of 1 sequence, 377 rows', \
     'coverage.csv' skip 1 every ::3::3 using ($2/0.01):($3/0.01) with points pt 13 ps 0.75 lc rgb '#CC79A7' title 'decode of 2 to 15 sequences, 22 rows', \
     'coverage.csv' skip 1 every ::4::4 using ($2/0.01):($3/0.01) with points pt 11 ps 0.75 lc rgb '#E69F00' title 'decode of 16 and more sequences, 210 rows', \
     'coverage.csv' skip 1 every ::5::5 using (0):($3/0.01):(1):(0) axes x2y1 with vectors nohead lw 1.8 dt (9,5) lc rgb '#222222' title 'nine in ten'
