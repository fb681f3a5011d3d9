# title: Parts of the time to first token on h200
# Draws parts.svg from parts.csv: run `gnuplot parts.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'parts.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set title 'Parts of the time to first token on h200' font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set xlabel 'Share of the prompt that is kept (%)'."\n".'From the left: llama-3.1-70b, specprefill; llama-3.1-70b, specprefill+kvp; llama-3.1-405b, specprefill;'."\n".'llama-3.1-405b, specprefill+kvp'."\n".''
set ylabel 'Share of the time to first token (%)'
set key below left horizontal Left reverse samplen 2.2 spacing 1.2
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set xtics ('10' 0, '30' 1, '50' 2, '70' 3, '90' 4, '' 5, '10' 6, '30' 7, '50' 8, '70' 9, '90' 10, '' 11, '10' 12, '30' 13, '50' 14, '70' 15, '90' 16, '' 17, '10' 18, '30' 19, '50' 20, '70' 21, '90' 22)
set yrange [*<0:*]
set offsets graph 0.03, graph 0.03, 0, 0

plot 'parts.csv' skip 1 every ::0::19 using 2:(($3+$4)/0.01):($2/1-0.36):($2/1+0.36):($4/0.01):(($3+$4)/0.01) with boxxyerror fs solid 0.9 noborder lc rgb '#0072B2' title 'speculator''s prefill', \
     'parts.csv' skip 1 every ::20::39 using 2:(($3+$4)/0.01):($2/1-0.36):($2/1+0.36):($4/0.01):(($3+$4)/0.01) with boxxyerror fs solid 0.9 noborder lc rgb '#D55E00' title 'look-ahead', \
     'parts.csv' skip 1 every ::40::59 using 2:(($3+$4)/0.01):($2/1-0.36):($2/1+0.36):($4/0.01):(($3+$4)/0.01) with boxxyerror fs solid 0.9 noborder lc rgb '#009E73' title 'score', \
     'parts.csv' skip 1 every ::60::79 using 2:(($3+$4)/0.01):($2/1-0.36):($2/1+0.36):($4/0.01):(($3+$4)/0.01) with boxxyerror fs solid 0.9 noborder lc rgb '#E69F00' title 'auxiliary model', \
     'parts.csv' skip 1 every ::80::99 using 2:(($3+$4)/0.01):($2/1-0.36):($2/1+0.36):($4/0.01):(($3+$4)/0.01) with boxxyerror fs solid 0.9 noborder lc rgb '#56B4E9' title 'predictor', \
     'parts.csv' skip 1 every ::100::119 using 2:(($3+$4)/0.01):($2/1-0.36):($2/1+0.36):($4/0.01):(($3+$4)/0.01) with boxxyerror fs solid 0.9 noborder lc rgb '#555555' title 'base model''s prefill'
