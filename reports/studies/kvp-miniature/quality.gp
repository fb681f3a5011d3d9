# gnuplot quality.gp draws quality.svg from quality.csv
set terminal svg noenhanced size 960,640 background '#ffffff' font 'sans-serif,14'
set output 'quality.svg'
set datafile separator ','
set title 'What predicted, pruned and small models lose' font 'sans-serif Bold,16'
set xlabel 'FLOPs of the prompt over those of the base model'
set ylabel 'loss above the base model (nats a byte)'
set xrange [0.15:1.05]
set yrange [-0.02:0.30]
set key top right
set grid
of(m) = stringcolumn('method') eq m ? column('difference_from_base') : NaN
plot 'quality.csv' using 'prefill_flops_share':(of('alone-lp')):'half_width' with yerrorbars pointtype 5 linecolor '#D55E00' title 'pruned layers alone', \
     'quality.csv' using 'prefill_flops_share':(of('alone-c')):'half_width' with yerrorbars pointtype 7 linecolor '#E69F00' title 'small sibling alone', \
     'quality.csv' using 'prefill_flops_share':(of('kvp-lp')):'half_width' with yerrorbars pointtype 4 linecolor '#0072B2' title 'KV Prediction by pruned layers', \
     'quality.csv' using 'prefill_flops_share':(of('kvp-c')):'half_width' with yerrorbars pointtype 6 linecolor '#56B4E9' title 'KV Prediction by the sibling', \
     'quality.csv' using 'prefill_flops_share':(of('random')):'half_width' with yerrorbars pointtype 9 linecolor '#009E73' title 'random tokens', \
     'quality.csv' using 'prefill_flops_share':(of('static')):'half_width' with yerrorbars pointtype 8 linecolor '#CC79A7' title 'tokens that the first layers attend to'
