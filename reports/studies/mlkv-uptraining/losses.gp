# gnuplot losses.gp draws losses.svg from losses.csv
set terminal svg noenhanced size 960,640 background '#ffffff' font 'sans-serif,14'
set output 'losses.svg'
set datafile separator ','
set title 'Held-out loss after uptraining, three seeds' font 'sans-serif Bold,16'
set xlabel 'key-value heads in all layers'
set ylabel 'loss (nats a byte)'
set logscale x 2
set xrange [0.8:180]
set xtics (1, 2, 4, 6, 12, 48, 144)
set yrange [1.1:2.6]
set key top right
set grid
as_paper(l, h) = column('layers') == l && column('heads') == h && stringcolumn('semantics') eq 'paper' && stringcolumn('merge') eq 'sequential' && stringcolumn('widen') eq 'copy'
inside(x) = column('layers') == 12 && as_paper(12, column('heads')) ? column('layers') * column('heads') : NaN
across(x) = column('heads') == 1 && column('layers') < 12 && as_paper(column('layers'), 1) ? column('layers') : NaN
both(x) = column('layers') == 4 && column('heads') > 1 && as_paper(4, column('heads')) ? column('layers') * column('heads') : NaN
other(s) = stringcolumn('semantics') eq s ? column('layers') * column('heads') : NaN
preserve(x) = stringcolumn('widen') eq 'preserve' ? column('layers') * column('heads') : NaN
plot 'losses.csv' using (inside(0)):'uptrained_loss' with points pointtype 7 linecolor '#0072B2' title 'fewer heads in each layer (GQA, MQA)', \
     'losses.csv' using (both(0)):'uptrained_loss' with points pointtype 9 linecolor '#009E73' title '4 layers own heads (MLKV)', \
     'losses.csv' using (across(0)):'uptrained_loss' with points pointtype 5 linecolor '#D55E00' title 'fewer layers own one head (MLKV)', \
     'losses.csv' using (other('released')):'uptrained_loss' with points pointtype 4 linecolor '#CC79A7' title 'the released program, un-rotated keys', \
     'losses.csv' using (preserve(0)):'uptrained_loss' with points pointtype 6 linecolor '#000000' title 'MLPs widened by halved copies'
