# gnuplot speedups.gp draws speedups.svg from speedups.csv
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14'
set output 'speedups.svg'
set datafile separator ','
set title 'Speed-up of a decode step over plain attention' font 'sans-serif Bold,16'
set xlabel 'measured' 
set ylabel 'forecast'
set xrange [0.85:1.4]
set yrange [0.85:1.4]
set key top left
set grid
plot x with lines linecolor '#999999' title 'equal', \
     'speedups.csv' using (stringcolumn('model') eq 'pythia-410m' && stringcolumn('method') ne 'plain' ? column('measured_speedup') : NaN):'predicted_speedup' \
       with points pointtype 7 linecolor '#0072B2' title 'pythia-410m', \
     'speedups.csv' using (stringcolumn('model') eq 'whisper-base' && stringcolumn('method') ne 'plain' ? column('measured_speedup') : NaN):'predicted_speedup' \
       with points pointtype 5 linecolor '#D55E00' title 'whisper-base'
