// What the explorer shows of its forecasts: numbers as text, tables and drawings.
'use strict';

// ---- Numbers as text ------------------------------------------------------------------------------

const prefixes = {seconds: [['s', 1], ['ms', 1e-3], ['µs', 1e-6], ['ns', 1e-9]],
                  bytes: [['PB', 1e15], ['TB', 1e12], ['GB', 1e9], ['MB', 1e6], ['kB', 1e3], ['B', 1]],
                  flops: [['PFLOP', 1e15], ['TFLOP', 1e12], ['GFLOP', 1e9], ['MFLOP', 1e6], ['kFLOP', 1e3], ['FLOP', 1]],
                  rate: [['PFLOP/s', 1e15], ['TFLOP/s', 1e12], ['GFLOP/s', 1e9], ['MFLOP/s', 1e6]],
                  plain: [['', 1]]};

function text_of(value, kind) {
  if (value === 0) return '0 ' + prefixes[kind].at(kind === 'seconds' ? 0 : -1)[0];
  const [unit, scale] = prefixes[kind].find(([, s]) => value >= 0.9995 * s) ?? prefixes[kind].at(-1);
  return `${(value / scale).toLocaleString('en', {maximumSignificantDigits: 3, useGrouping: false})} ${unit}`.trim();
}
/// All of its digits on hover.
const shown = (value, kind) => `<span title="${value}">${text_of(value, kind)}</span>`;
const percent = share => `${(100 * share).toLocaleString('en', {maximumSignificantDigits: 2})} %`;
const bar_text = bound => bound === null ? '' : `±${Math.ceil(100 * bound - 1e-3)} %`;
const passes = {prefill: 'Prefill', decode: 'One decode step'};

// ---- Views ----------------------------------------------------------------------------------------

let forecasts = [];  // of each configuration: {document, messages} or {error}

/// Lines break before flags, where they can.
const broken_at_flags = line => line.split(/ (?=--)/).map(w => `<span>${escaped(w)}</span>`).join(' ');

function source_html(id, commands, file) {
  return `<pre tabindex="0" aria-label="The command that gives these numbers">${commands.map(broken_at_flags).join('\n')}</pre>
    <div><button type="button" data-copy="${id}">Copy the command</button>
    <a href="#" download="${file}" data-csv="${id}">Download as CSV</a></div>`;
}
const csv_of = {};  // makes the text when it is asked for

function csv_cell(value) {
  const text = String(value ?? '');
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
const csv_text = rows => rows.map(r => r.map(csv_cell).join(',') + '\n').join('');

function show_tabs() {
  const parts = c => [c.model.split('/')[0], c.hardware, c.engine, c.method].filter(w => w !== '').join(' · ');
  const focused = document.activeElement?.closest('#tabs button')?.dataset.index;
  $('tabs').innerHTML = state.configurations.map((c, i) =>
    `<button type="button" data-index="${i}" aria-pressed="${i === state.active}"
      style="--color: ${color(i)}">${name_of(i)}: ${escaped(parts(c))}</button>`).join('');
  if (focused !== undefined) $('tabs').children[focused]?.focus();
  $('add').disabled = state.configurations.length >= most_configurations;
  $('remove').disabled = state.configurations.length === 1;
}

function show_summary() {
  const {document: d, error} = forecasts[state.active];
  const several = state.configurations.length > 1 ? `<b>${name_of(state.active)}</b> ` : '';
  $('summary').innerHTML = error ? `${several}<span class="bad error">${escaped(error)}</span>` :
    `${several}<span><b>TTFT</b>${shown(d.ttft_s, 'seconds')}</span>
     <span><b>TPOT</b>${shown(d.tpot_s, 'seconds')}</span>
     <span class="${d.fits ? '' : 'bad'}"><b>Memory</b>${shown(d.peak_memory_bytes, 'bytes')} of
       ${shown(d.memory_capacity_bytes, 'bytes')}${d.fits ? '' : ': does not fit'}</span>`;
}

function show_numbers() {
  const gain = ratio => ratio === 1 ? '' : `${ratio.toFixed(2)}x plain`;
  const lines = (...texts) => `<small>${texts.filter(t => t !== '').map(escaped).join(' · ')}</small>`;
  const several = d => d.devices > 1;
  const rows = [
    ['Time to first token (TTFT)', d => `<span class="big">${shown(d.ttft_s, 'seconds')}</span>` +
      lines(`${d.ttft_bound}-bound`, gain(d.ttft_speedup), bar_text(d.ttft_error_bound))],
    ['Time per output token (TPOT)', d => `<span class="big">${shown(d.tpot_s, 'seconds')}</span>` +
      lines(`${d.tpot_bound}-bound`, gain(d.tpot_speedup), bar_text(d.tpot_error_bound))],
    ['Peak memory of a device', d => `<span class="big">${shown(d.peak_memory_bytes, 'bytes')}</span>` +
      `<small${d.fits ? '' : ' class="bad"'}>${d.fits ? 'fits' : 'does not fit'} ${text_of(d.memory_capacity_bytes, 'bytes')}</small>`],
    ['Weights', d => shown(d.weight_bytes, 'bytes') + lines(d.weight_dtype,
      several(d) ? `${text_of(d.weight_bytes_per_device, 'bytes')} a device` : '')],
    ['KV cache', d => shown(d.kv_cache_bytes, 'bytes') + lines(
      d.kv_cache_ratio === 1 ? '' : `${d.kv_cache_ratio.toPrecision(3)} of plain`,
      several(d) ? `${text_of(d.kv_cache_bytes_per_device, 'bytes')} a device` : '')],
    ['Work of the prefill', d => `${shown(d.prefill_flops, 'flops')}<small>${shown(d.prefill_bytes, 'bytes')}</small>`],
    ['Work of a decoded token', d => `${shown(d.decode_flops_per_token, 'flops')}<small>${shown(d.decode_bytes_per_token, 'bytes')}</small>`],
  ];
  $('numbers').innerHTML = `<table><thead><tr><th scope="col"></th>${state.configurations.map((c, i) =>
    `<th scope="col" style="--color: ${color(i)}">${name_of(i)}: ${escaped(c.model.split('/')[0])}</th>`).join('')}</tr></thead>
    <tbody>${rows.map(([label, cell], row) => `<tr><th scope="row">${label}</th>${forecasts.map(f =>
      f.error ? (row > 0 ? '' : `<td class="word bad" rowspan="${rows.length}">${escaped(f.error)}</td>`)
              : `<td>${cell(f.document)}</td>`).join('')}</tr>`).join('')}</tbody></table>`;
  const paragraphs = lines_of => forecasts.map((f, i) => f.error ? '' :
    lines_of(f).map(l => `<p><b>${name_of(i)}</b> ${escaped(l)}</p>`).join('')).join('');
  $('warnings').innerHTML = paragraphs(f => f.messages);
  $('notes').innerHTML = paragraphs(({document: d}) => [
    ...[d.ttft_error_population].filter(p => p).map(p => 'TTFT’s bound: ' + p),
    ...[d.tpot_error_population].filter(p => p).map(p => 'TPOT’s bound: ' + p),
    `rests on ${d.rests_on.join(', ')} figures`,
  ]);
  const commands = state.configurations.map(c => command_line(['estimate', ...words_of(c)]));
  $('numbers-source').innerHTML = source_html('numbers-source', commands, 'forecast.csv');
  csv_of['numbers-source'] = () => {
    const texts = state.configurations.map(c => run(sweep_words(c, {})).text).filter(t => t);
    return texts.map((t, i) => i === 0 ? t : t.slice(t.indexOf('\n') + 1)).join('');
  };
}

/// Bars of parts, one for each configuration: bars [{parts: [[label, value]], note, bad, limit}].
function bars_svg(bars, kind, label) {
  const longest_note = Math.max(...bars.map(b => b.note.length));
  const width = plot.width, left = 30, right = 20 + 7 * longest_note, height = 34;
  const most = Math.max(...bars.map(b => Math.max(b.limit ?? 0, b.parts.reduce((sum, [, v]) => sum + v, 0))));
  const at = value => left + (width - left - right) * value / most;
  const names = [...new Set(bars.flatMap(b => b.parts.map(([n]) => n)))];
  let svg = '';
  bars.forEach((b, i) => {
    const y = 4 + i * (height + 8);
    svg += `<text class="big" x="4" y="${y + 22}" style="fill: ${color(b.index)}">${name_of(b.index)}</text>`;
    let sum = 0;
    for (const [n, value] of b.parts) {
      if (value <= 0) continue;
      const tip = `${n}: ${text_of(value, kind)}`;
      svg += `<rect x="${at(sum)}" y="${y}" width="${Math.max(at(sum + value) - at(sum), .5)}" height="${height}"
        fill="var(--p${names.indexOf(n) % 7})" data-tip="${escaped(tip)}"/>`;
      sum += value;
    }
    if (b.limit) {
      svg += `<line x1="${at(b.limit)}" x2="${at(b.limit)}" y1="${y - 3}" y2="${y + height + 3}"
        stroke="var(--fg)" stroke-width="2" stroke-dasharray="4 3" data-tip="capacity: ${text_of(b.limit, kind)}"/>`;
    }
    svg += `<text x="${at(Math.max(sum, b.limit ?? 0)) + 8}" y="${y + 22}"${b.bad ? ' style="fill: var(--bad)"' : ''}>${escaped(b.note)}</text>`;
  });
  const key = names.map((n, i) => `<span><i style="--color: var(--p${i % 7})"></i>${escaped(n)}</span>`).join('');
  const spoken = bars.map(b => `${name_of(b.index)}: ${b.parts.map(([n, v]) => `${n} ${text_of(v, kind)}`).join(', ')}`).join('; ');
  return `<svg viewBox="0 0 ${width} ${bars.length * (height + 8) + 4}" role="img" aria-label="${label}. ${escaped(spoken)}">${svg}</svg><div class="key">${key}</div>`;
}

/// What a prefill without other passes spends its time on.
function parts_of(d) {
  const parts = Object.entries(d.ttft_parts_s).map(([n, v]) => [part_words[n] ?? n.replaceAll('_', ' '), v]);
  const rows = d.breakdown.filter(r => r.pass === 'prefill');
  const sum = rows => rows.reduce((all, r) => all + r.seconds, 0);
  if (parts.length !== 1 || rows.length === 0 || sum(rows) > d.ttft_s * (1 + 1e-9)) return parts;
  const kind = r => r.bound === 'link' ? 'messages' : r.operator === 'host' ? 'host' :
    /attention/.test(r.operator) ? 'attention' : /linear/.test(r.operator) ? 'products with weights' : 'other operators';
  return [...['products with weights', 'attention', 'other operators', 'host', 'messages'].map(k => [k, sum(rows.filter(r => kind(r) === k))]),
          ['waiting', d.ttft_s - sum(rows)]].filter(([, v]) => v > d.ttft_s * 1e-9);
}
const part_words = {base: 'base model'};

function show_bars() {
  const valid = forecasts.map((f, index) => ({d: f.document, index})).filter(f => f.d);
  $('parts').innerHTML = valid.length === 0 ? '' : bars_svg(valid.map(({d, index}) => ({
    index, parts: parts_of(d),
    note: text_of(d.ttft_s, 'seconds') +
      (d.communication_s > 0 ? `, messages ${percent(d.communication_s / d.ttft_s)}` : ''),
  })), 'seconds', 'Time to first token by part');
  $('memory').innerHTML = valid.length === 0 ? '' : bars_svg(valid.map(({d, index}) => ({
    index, limit: d.memory_capacity_bytes, bad: !d.fits,
    parts: [['weights', d.weight_bytes_per_device], ['KV cache', d.kv_cache_bytes_per_device],
            ['activations and other', d.peak_memory_bytes - d.weight_bytes_per_device - d.kv_cache_bytes_per_device]],
    note: d.fits ? `fits ${text_of(d.memory_capacity_bytes, 'bytes')}` : 'does not fit',
  })), 'bytes', 'Memory of a device by class; the dashed line is its capacity');
}

// ---- Axes of plots --------------------------------------------------------------------------------

const plot = {width: 760, height: 360, left: 78, right: 20, top: 14, bottom: 44};

/// A unit of the drawing is a pixel, so that text keeps its size on a phone.
function fit_plots() {
  plot.width = Math.max(300, $('results').clientWidth);
  plot.height = plot.width < 500 ? 280 : 360;
}

/// Logarithmic: {at, svg} where at(value) is a place.
function axis(low, high, is_x, label, tick_text, ticks) {
  if (low === high) [low, high] = [low / 2, high * 2];
  const [from, to] = is_x ? [plot.left + 8, plot.width - plot.right] : [plot.height - plot.bottom, plot.top];
  const at = v => from + (to - from) * Math.log(v / low) / Math.log(high / low);
  let svg = '';
  for (const tick of ticks ?? decades(low, high)) {
    const p = at(tick);
    svg += is_x
      ? `<line class="grid" x1="${p}" x2="${p}" y1="${plot.top}" y2="${plot.height - plot.bottom}"/>
         <text class="soft" x="${p}" y="${plot.height - plot.bottom + 17}" text-anchor="middle">${tick_text(tick)}</text>`
      : `<line class="grid" y1="${p}" y2="${p}" x1="${plot.left}" x2="${plot.width - plot.right}"/>
         <text class="soft" x="${plot.left - 6}" y="${p + 4}" text-anchor="end">${tick_text(tick)}</text>`;
  }
  svg += is_x
    ? `<text x="${(from + to) / 2}" y="${plot.height - 6}" text-anchor="middle">${escaped(label)}</text>`
    : `<text transform="translate(13 ${(from + to) / 2}) rotate(-90)" text-anchor="middle">${escaped(label)}</text>`;
  return {at, svg};
}

function decades(low, high) {
  const all = [];
  const most = plot.width < 500 ? 5 : 8;
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); ++e) {
    for (const m of [1, 2, 5]) all.push(m * 10 ** e);
  }
  const inside = all.filter(v => v >= low * 0.999 && v <= high * 1.001);
  const tens = inside.filter(v => Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9);
  if (inside.length <= most) return inside;
  const step = Math.ceil(tens.length / most);
  return tens.filter((_, i) => i % step === 0);
}

// ---- Curves ---------------------------------------------------------------------------------------

const curves = {
  ttft_s: {label: 'TTFT', kind: 'seconds', bound: 'ttft_error_bound'},
  tpot_s: {label: 'TPOT', kind: 'seconds', bound: 'tpot_error_bound'},
  kv_cache_bytes: {label: 'KV cache', kind: 'bytes'},
  peak_memory_bytes: {label: 'peak memory of a device', kind: 'bytes'},
  prefill_flops: {label: 'work of the prefill', kind: 'flops'},
};
const short = value => value >= 1024 && value % 1024 === 0 ? `${value / 1024}k` : String(value);
const axes = {
  'prompt-len': {label: 'prompt tokens', column: 'prompt_len', values: '64..128k:x2', text: short},
  'batch': {label: 'batch', column: 'batch', values: '1..256:x2', text: short},
  'output-len': {label: 'output tokens', column: 'output_len', values: '16..16k:x2', text: short},
  'keep': {label: 'keep rate', column: 'keep', values: null, text: v => v.toFixed(2).replace(/0$/, '')},
};
const keep_rates = ['0.05', '0.1', '0.15', '0.2', '0.3', '0.4', '0.5', '0.6', '0.7', '0.8', '0.9', '1'];

/// The words of `kvcast sweep` for a configuration, with other values of some flags.
function sweep_words(c, values) {
  return ['sweep', ...words_of({...c, ...values})];
}

function sweep_of(c) {
  if (state.x !== 'keep') return sweep_words(c, {[state.x]: axes[state.x].values});
  if (!/(^|[:,])keep=/.test(c.method)) return null;
  const methods = keep_rates.map(k => c.method.replace(/(^|[:,])keep=[^,+]*/, `$1keep=${k}`));
  return sweep_words(c, {method: methods.join(';')});
}

/// Rows of a CSV as objects.
function parse_csv(text) {
  const rows = text.split('\n').filter(l => l !== '').map(line =>
    [...line.matchAll(/("(?:[^"]|"")*"|[^,]*)(?:,|$)/g)].map(m => m[1].replace(/^"|"$/g, '').replaceAll('""', '"')));
  const [head, ...body] = rows;
  return body.map(cells => Object.fromEntries(head.map((name, i) => [name, cells[i]])));
}

function show_curves() {
  const y = curves[state.y] ?? curves.ttft_s, x = axes[state.x] ?? axes['prompt-len'];
  const lines = [], commands = [], texts = [], problems = [];
  state.configurations.forEach((c, index) => {
    const words = forecasts[index].error && state.x !== 'keep' ? null : sweep_of(c);
    if (!words) return problems.push(`${name_of(index)}: ${forecasts[index].error ?? 'its method has no keep rate'}`);
    const {text, error} = run(words);
    if (error) return problems.push(`${name_of(index)}: ${error}`);
    commands.push(command_line(words));
    texts.push(text);
    const points = parse_csv(text).filter(r => r.error === '').map(r => ({
      x: x.column === 'keep' ? Number(/keep=([0-9.]+)/.exec(r.method)?.[1] ?? 1) : Number(r[x.column]),
      y: Number(r[state.y]), bound: y.bound && r[y.bound] !== '' ? Number(r[y.bound]) : null,
      fits: r.fits === 'true',
    })).filter(p => p.y > 0);
    if (points.length > 0) lines.push({index, points});
    else problems.push(`${name_of(index)}: ${parse_csv(text)[0]?.error ?? 'no value'}`);
  });
  $('curves').innerHTML = (lines.length > 0 ? curves_svg(lines, x, y) : '') +
    problems.map(p => `<p class="bad">${escaped(p)}</p>`).join('') +
    (lines.some(l => l.points.some(p => p.bound !== null)) ? '<p class="key">Bands: nine of ten stored measurements of such a setup were this close to their forecast.</p>' : '') +
    (lines.some(l => l.points.some(p => !p.fits)) ? '<p class="key">Hollow: does not fit the memory.</p>' : '');
  $('curves-source').innerHTML = commands.length > 0 ? source_html('curves-source', commands, 'curves.csv') : '';
  csv_of['curves-source'] = () => texts.map((t, i) => i === 0 ? t : t.slice(t.indexOf('\n') + 1)).join('');
}

function curves_svg(lines, x, y) {
  const all = lines.flatMap(l => l.points);
  const xs = [...new Set(all.map(p => p.x))].sort((a, b) => a - b);
  const low = Math.min(...all.map(p => p.y / (1 + (p.bound ?? 0)))) / 1.1;
  const high = Math.max(...all.map(p => p.y * (1 + (p.bound ?? 0)))) * 1.1;
  const ticks = x.column === 'keep' ? [0.05, 0.1, 0.2, 0.5, 1] : xs.filter((_, i) => xs.length <= (plot.width < 500 ? 6 : 12) || i % 2 === 0);
  const along = axis(xs[0], xs.at(-1), true, x.label, x.text, ticks);
  const up = axis(low, high, false, y.label, v => text_of(v, y.kind));
  let svg = along.svg + up.svg;
  const path = points => points.map((p, i) => `${i === 0 ? 'M' : 'L'}${along.at(p[0]).toFixed(1)} ${up.at(p[1]).toFixed(1)}`).join('');
  for (const {index, points} of lines) {
    const banded = points.filter(p => p.bound !== null);
    if (banded.length > 1) {
      const band = [...banded.map(p => [p.x, p.y * (1 + p.bound)]), ...banded.map(p => [p.x, p.y / (1 + p.bound)]).reverse()];
      svg += `<path d="${path(band)}Z" fill="${color(index)}" opacity=".15"/>`;
    }
  }
  for (const {index, points} of lines) {
    svg += `<path d="${path(points.map(p => [p.x, p.y]))}" fill="none" stroke="${color(index)}" stroke-width="2.5"/>`;
    for (const p of points) {
      const tip = `${name_of(index)}: ${y.label} ${text_of(p.y, y.kind)} ${bar_text(p.bound)} at ${x.text(p.x)} ${x.label}${p.fits ? '' : '; does not fit'}`;
      svg += `<circle cx="${along.at(p.x)}" cy="${up.at(p.y)}" r="4.5" stroke="${color(index)}" stroke-width="2"
        fill="${p.fits ? color(index) : 'var(--bg)'}" data-tip="${escaped(tip)}"/>`;
    }
    const d = forecasts[index].document;
    const here = !d ? null : x.column === 'keep' ? Number(/keep=([0-9.]+)/.exec(d.method)?.[1]) : d[x.column];
    if (here && d[state.y] > 0 && here >= xs[0] && here <= xs.at(-1)) {
      const [cx, cy] = [along.at(here), up.at(d[state.y])];
      svg += `<path class="here" d="M${cx} ${cy - 9}L${cx + 9} ${cy}L${cx} ${cy + 9}L${cx - 9} ${cy}Z" fill="${color(index)}"
        data-tip="${escaped(`${name_of(index)} as chosen: ${y.label} ${text_of(d[state.y], y.kind)}`)}"/>`;
    }
  }
  const spoken = lines.map(l => `${name_of(l.index)}: ${l.points.map(p => `${x.text(p.x)}: ${text_of(p.y, y.kind)}`).join(', ')}`).join('; ');
  const key = lines.map(l => `<span><i style="--color: ${color(l.index)}"></i>${name_of(l.index)}: ${escaped(state.configurations[l.index].model.split('/')[0])}</span>`).join('');
  return `<svg viewBox="0 0 ${plot.width} ${plot.height}" role="img" aria-label="${escaped(y.label)} over ${escaped(x.label)}. ${escaped(spoken)}">${svg}</svg>
    <div class="key">${key}<span>◆ as chosen</span></div>`;
}

// ---- Roofline -------------------------------------------------------------------------------------

let chosen = 0;  // the operator that is explained

function operators_of(d) {
  const all = d.breakdown;
  const names = [...new Set(all.map(r => r.pass))];
  if (!names.includes(state.pass)) state.pass = names.includes('prefill') ? 'prefill' : names[0];
  $('pass').innerHTML = options_html(names.map(n => [n, passes[n] ?? n]), state.pass);
  return all.filter(r => r.pass === state.pass).sort((a, b) => b.seconds - a.seconds);
}

/// Which of its two least times is longer, and what else there is.
function explanation(r, d) {
  const needs = `${text_of(r.flops, 'flops')} and ${text_of(r.bytes, 'bytes')}`;
  const times = r.count > 1 ? `, ${r.count} times` : '';
  const least = `Its FLOPs alone take ${text_of(r.compute_s, 'seconds')}, its memory traffic ${text_of(r.memory_s, 'seconds')}`;
  const spared = r.bytes_on_chip > 0 ? `; ${text_of(r.bytes_on_chip, 'bytes')} stay on the chip` : '';
  const why = {compute: 'so the arithmetic units bind it', memory: 'so the memory binds it',
               latency: 'so starting it takes longest', link: 'so the link between devices binds it'}[r.bound] ?? `${r.bound} binds it`;
  if (r.flops === 0 && r.bytes === 0) return `<b>${escaped(r.label)}</b> (${escaped(r.operator)}${times}): <b>${text_of(r.seconds, 'seconds')}</b>, neither FLOPs nor memory traffic of the device.`;
  return `<b>${escaped(r.label)}</b> (${escaped(r.operator)}${times}): ${needs}. ${least}${spared}, ${why}: <b>${text_of(r.seconds, 'seconds')}</b>.`;
}

function show_roofline() {
  const {document: d} = forecasts[state.active];
  if (!d) {
    for (const id of ['roofline', 'explained', 'operators', 'roofline-source']) $(id).innerHTML = '';
    return;
  }
  const rows = operators_of(d);
  chosen = Math.min(chosen, Math.max(0, rows.length - 1));
  const [compute, memory] = [d.roof_flops_per_second, d.roof_bytes_per_s];
  const dots = rows.map((r, i) => ({r, i, x: r.flops / r.bytes, y: r.flops / r.seconds}))
    .filter(p => p.x > 0 && p.y > 0 && Number.isFinite(p.x));
  const low_x = Math.min(0.5, ...dots.map(p => p.x / 1.5)), high_x = Math.max(4 * compute / memory, ...dots.map(p => p.x * 1.5));
  const high_y = Math.max(compute * 2, ...dots.map(p => p.y * 1.5)), low_y = Math.min(low_x * memory, ...dots.map(p => p.y)) / 1.5;
  const along = axis(low_x, high_x, true, 'FLOPs for each byte', v => v.toLocaleString('en', {maximumSignificantDigits: 2, useGrouping: false}));
  const up = axis(low_y, high_y, false, 'FLOP/s', v => text_of(v, 'rate').replace('LOP/s', ''));
  const ridge = compute / memory;
  let svg = along.svg + up.svg + `<path class="roof" d="M${along.at(low_x)} ${up.at(low_x * memory)}L${along.at(ridge)} ${up.at(compute)}L${along.at(high_x)} ${up.at(compute)}"/>
    <text x="${along.at(ridge) - 6}" y="${up.at(compute) - 4}" text-anchor="end">${text_of(compute, 'rate')}</text>
    <text transform="translate(${along.at(low_x) + 40} ${up.at(low_x * memory) - 46 * (up.at(low_x * memory) - up.at(compute)) / (along.at(ridge) - along.at(low_x)) - 8}) rotate(${-Math.atan2(up.at(low_x * memory) - up.at(compute), along.at(ridge) - along.at(low_x)) * 180 / Math.PI})">${text_of(memory, 'bytes')}/s</text>`;
  const total = rows.reduce((sum, r) => sum + r.seconds, 0);
  for (const p of dots) {
    const radius = 4 + 18 * Math.sqrt(p.r.seconds / total);
    svg += `<circle class="dot${p.i === chosen ? ' chosen' : ''}" data-operator="${p.i}" cx="${along.at(p.x).toFixed(1)}" cy="${up.at(p.y).toFixed(1)}"
      r="${radius.toFixed(1)}" fill="${color(state.active)}" fill-opacity=".7" data-tip="${escaped(`${p.r.label}: ${text_of(p.r.seconds, 'seconds')}, ${percent(p.r.seconds / total)}`)}"/>`;
  }
  $('roofline').innerHTML = `<svg viewBox="0 0 ${plot.width} ${plot.height}" tabindex="0" role="application"
    aria-label="Roofline of ${name_of(state.active)}: ${rows.length} operators, the slowest first; arrow keys move among them" aria-describedby="explained">${svg}</svg>
    <div class="key"><span>Area: share of the pass’s time.</span><span>Arrow keys: the next operator.</span></div>`;
  explain(rows, d);
  const columns = Object.keys(d.breakdown[0] ?? {});
  shown_rows = rows;
  $('operators').innerHTML = !$('all-operators').open ? '' : `<table><thead><tr><th scope="col">operator</th><th scope="col">count</th><th scope="col">work</th>
    <th scope="col">traffic</th><th scope="col">time</th><th scope="col">share</th><th scope="col">bound</th></tr></thead><tbody>${rows.map(r =>
    `<tr><th scope="row">${escaped(r.label)}</th><td>${r.count}</td><td>${shown(r.flops, 'flops')}</td><td>${shown(r.bytes, 'bytes')}</td>
     <td>${shown(r.seconds, 'seconds')}</td><td>${percent(r.seconds / total)}</td><td>${r.bound}</td></tr>`).join('')}</tbody></table>`;
  $('roofline-source').innerHTML = source_html('roofline-source', [command_line(['estimate', ...words_of(active()), '--breakdown'])], 'operators.csv');
  csv_of['roofline-source'] = () => csv_text([columns, ...d.breakdown.map(r => columns.map(c => r[c]))]);
}
let shown_rows = [];

function explain(rows, d) {
  $('explained').innerHTML = rows.length > 0 ? explanation(rows[chosen], d) : '';
  for (const dot of $('roofline').querySelectorAll('.dot')) {
    dot.classList.toggle('chosen', Number(dot.dataset.operator) === chosen);
  }
}
