# title: KV-Runahead, Table 3: TTFT on one A100 80GB, eager attention
# Draws ttft.svg from ttft.csv: run `gnuplot ttft.gp` in this folder.
reset
set encoding utf8
set terminal svg noenhanced size 960,600 background '#ffffff' font 'sans-serif,14' rounded
set output 'ttft.svg'
set datafile separator comma
set datafile commentschars ''
set datafile missing NaN

set title 'KV-Runahead, Table 3: TTFT on one A100 80GB, eager attention' font 'sans-serif Bold,17.3333' textcolor rgb '#222222'
set xlabel 'Prompt length (tokens)'."\n".''
set ylabel 'Time to first token (s)'
set key below left horizontal Left reverse samplen 2.2 spacing 1.2
set border 3 lc rgb '#888888' lw 1
set tics out nomirror scale 0.6,0.3 textcolor rgb '#333333'
set grid xtics ytics back lt 1 lc rgb '#e4e4e4' lw 1
set logscale x 2
set xtics ('1' 1, '2' 2, '4' 4, '8' 8, '16' 16, '32' 32, '64' 64, '128' 128, '256' 256, '512' 512, '1k' 1024, '2k' 2048, '4k' 4096, '8k' 8192, '16k' 16384, '32k' 32768, '64k' 65536, '128k' 131072, '256k' 262144, '512k' 524288, '1M' 1048576, '2M' 2097152, '4M' 4194304, '8M' 8388608, '16M' 16777216, '32M' 33554432, '64M' 67108864, '128M' 134217728, '256M' 268435456, '512M' 536870912, '1G' 1073741824, '2G' 2147483648, '4G' 4294967296, '8G' 8589934592, '16G' 17179869184, '32G' 34359738368, '64G' 68719476736, '128G' 137438953472, '256G' 274877906944, '512G' 549755813888, '1T' 1099511627776)
set logscale y 10
set offsets graph 0.03, graph 0.03, 0, 0

plot 'ttft.csv' skip 1 every ::0::4 using 2:3 with lines lw 2.2 lc rgb '#0072B2' title 'forecast', \
     'ttft.csv' skip 1 every ::5::9 using 2:3 with points pt 5 ps 0.75 lc rgb '#D55E00' title 'published (measured)'
