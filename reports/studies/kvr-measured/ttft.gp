# Draws ttft.svg from measurements.csv: run `gnuplot ttft.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,640 background '#ffffff' font 'sans-serif,14' rounded
set output 'ttft.svg'
set datafile separator comma
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid ytics back lt 1 lc rgb '#e4e4e4' lw 1
set key outside top right horizontal Left reverse samplen 2.2
set title 'Pythia-410M, 512 tokens, ranks of one thread each: measured (median, lowest, highest) and simulated'
set ylabel 'Time to first token (s)'
set yrange [0:*]
set offsets 0.6, 0.6, 0, 0
set bmargin 12
set rmargin 20
set xtics font 'sans-serif,11' rotate by -35

plot 'measurements.csv' skip 1 using 0:7:8:9:xtic(sprintf("%s%s, %s", strcol(5)[1:5] eq 'plain' ? 'one process' : strcol(5)[1:7], strlen(strcol(6)) > 0 ? " ".strcol(6) : "", strcol(1))) with yerrorbars pt 5 ps 0.7 lc rgb '#D55E00' title 'measured', \
     '' skip 1 using 0:10:(0.35) with xerrorbars pt 0 ps 0 lw 2.2 lc rgb '#0072B2' title 'simulated'
