# gnuplot speedups.gp draws speedups.svg from speedups.csv
set terminal svg noenhanced size 960,640 background '#ffffff' font 'sans-serif,14'
set output 'speedups.svg'
set datafile separator ','
set title 'Speed-up of the time to first token over plain' font 'sans-serif Bold,16'
set xlabel 'measured'
set ylabel 'forecast'
set logscale xy 2
set xrange [0.6:5]
set yrange [0.6:5]
set xtics (0.7, 1, 1.5, 2, 3, 4)
set ytics (0.7, 1, 1.5, 2, 3, 4)
set key top left
set grid
of(model) = stringcolumn('model') eq model ? column('measured_speedup') : NaN
plot x with lines linecolor '#999999' title 'equal', \
     1.1 * x with lines dashtype 2 linecolor '#999999' title '10 % off', \
     x / 1.1 with lines dashtype 2 linecolor '#999999' notitle, \
     'speedups.csv' using (of('smollm2-135m')):'predicted_speedup' with points pointtype 7 linecolor '#0072B2' title 'smollm2-135m', \
     'speedups.csv' using (of('openelm-270m')):'predicted_speedup' with points pointtype 5 linecolor '#D55E00' title 'openelm-270m', \
     'speedups.csv' using (of('openelm-450m')):'predicted_speedup' with points pointtype 9 linecolor '#009E73' title 'openelm-450m', \
     'speedups.csv' using (of('openelm-1.1b')):'predicted_speedup' with points pointtype 13 linecolor '#CC79A7' title 'openelm-1.1b'
