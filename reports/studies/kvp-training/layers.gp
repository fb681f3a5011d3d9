# gnuplot layers.gp draws layers.svg from layers.csv
set terminal svg noenhanced size 960,640 background '#ffffff' font 'sans-serif,14'
set output 'layers.svg'
set datafile separator ','
set title 'Predicted keys and values after training, half the layers' font 'sans-serif Bold,16'
set xlabel 'layer of the base model'
set ylabel 'mean absolute error'
set yrange [0:1.4]
set key top left
set grid
plot 'layers.csv' using 'layer':'key_l1' with linespoints pointtype 7 linecolor '#0072B2' title 'keys (before the rotation)', \
     'layers.csv' using 'layer':'value_l1' with linespoints pointtype 5 linecolor '#D55E00' title 'values'
