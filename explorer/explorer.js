// The explorer: controls, drawings and the address. Every number comes from the module, which runs the
// commands that the page shows; here nothing is computed but places on the screen.
const $ = id => document.getElementById(id);
const escaped = text => String(text).replace(/[&<>"]/g,
  c => ({'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;'})[c]);

// ---- The module -----------------------------------------------------------------------------------

let estimator = null;   // the instance
let last_words = '';    // what it said before it stopped
let wasmBinary = null;
let files = {};         // the catalog, by path below data/
const results = new Map();  // what a command gave, by its line
const most_results = 400;

async function unpacked(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).arrayBuffer();
}

async function start_module() {
  estimator = await kvcastModule({wasmBinary, printErr: line => {
    if (!line.startsWith('Aborted')) last_words = line;
  }});
  for (const [path, text] of Object.entries(files)) {
    estimator.FS.mkdirTree('/data/' + path.split('/')[0]);
    estimator.FS.writeFile('/data/' + path, text);
  }
  place_pasted();
}

/// {document, text, messages} or {error}
function run(words) {
  const line = JSON.stringify(words);
  if (results.has(line)) return results.get(line);
  let result;
  try {
    result = JSON.parse(estimator.ccall('kvcast_run', 'string', ['string'], [line]));
  } catch (failure) {  // a bug of the program ends its instance
    result = {error: 'the estimator stopped: ' + (last_words || failure.message)};
    start_module();
  }
  if (results.size >= most_results) results.delete(results.keys().next().value);
  results.set(line, result);
  return result;
}

// ---- State ----------------------------------------------------------------------------------------

/// The flags of the command line and their defaults; '' leaves a flag out.
const defaults = {
  'model': 'llama-3.1-8b', 'hardware': 'h100-sxm', 'engine': '', 'method': '', 'dtype': '',
  'weight-dtype': '', 'activation-dtype': '', 'cache-dtype': '', 'attention': '', 'mode': '',
  'tp': '', 'pp': '', 'ep': '', 'dp': '', 'platform': '',
  'batch': '1', 'prompt-len': '1024', 'output-len': '128',
};
const sizes = ['batch', 'prompt-len', 'output-len'];
const most_configurations = 4;
const letters = 'ABCD';
const first_view = {active: 0, x: 'prompt-len', y: 'ttft_s', pass: ''};
const state = {configurations: [{...defaults}], ...first_view};
const pasted = {};  // texts of pasted configs, by their path

const active = () => state.configurations[state.active];
const color = i => `var(--c${i})`;
const name_of = i => letters[i];

function read_address() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const read = [];
  Object.assign(state, first_view);
  for (const [key, value] of fields) {
    const [index, flag] = key.split('.');
    if (flag === undefined) {
      if (key === 'active') state.active = Math.max(0, Math.trunc(Number(value)) || 0);
      else if (key === 'pass' || Object.hasOwn({x: axes, y: curves}[key] ?? {}, value)) state[key] = value;
    } else if (index === 'config') {
      pasted[key.slice('config.'.length)] = value;
    } else if (/^\d$/.test(index) && Number(index) < most_configurations && Object.hasOwn(defaults, flag)) {
      (read[Number(index)] ??= {...defaults})[flag] = value;
    }
  }
  if (read.length > 0) state.configurations = Array.from(read, c => c ?? {...defaults});
  else state.configurations = [{...defaults}];
  state.active = Math.min(state.active, state.configurations.length - 1);
}

function address() {
  const fields = new URLSearchParams();
  state.configurations.forEach((c, i) => {
    for (const flag of Object.keys(defaults)) {
      if (c[flag] !== defaults[flag] || flag === 'model') fields.set(`${i}.${flag}`, c[flag]);
    }
    if (pasted[c.model] !== undefined) fields.set('config.' + c.model, pasted[c.model]);
  });
  if (state.active > 0) fields.set('active', state.active);
  for (const key of ['x', 'y', 'pass']) fields.set(key, state[key]);
  return '#' + fields;
}

/// The words of `kvcast estimate` for a configuration; `but`: flags that are left out.
function words_of(c, but = []) {
  const words = [];
  for (const flag of Object.keys(defaults)) {
    const is_given = c[flag] !== '' || sizes.includes(flag);  // an empty size is a mistake
    if (is_given && !but.includes(flag)) words.push('--' + flag, c[flag]);
  }
  return words;
}
const estimate_words = c => ['estimate', ...words_of(c), '--breakdown', '--json'];

const quoted = word => /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
const command_line = words => ['kvcast', ...words.map(quoted)].join(' ');

// ---- Methods: one of each kind, with options -------------------------------------------------------

let choices = null;
const kinds = {prompt: ['Tokens that the model reads', 'all of the prompt'],
               source: ['The prompt’s cache comes from', 'the model itself'],
               cache: ['Cached for each token', 'as the model has it'],
               placement: ['The prompt is read by', 'one device, or one group']};

/// "slim+kvr:p=4" -> [{name, options: {p: '4'}}]
function parse_method(text) {
  return text.split('+').filter(part => part !== '').map(part => {
    const [name, ...rest] = part.split(':');
    const options = {};
    for (const option of rest.join(':').split(',').filter(o => o !== '')) {
      const [key, ...value] = option.split('=');
      options[key] = value.join('=');
    }
    return {name, options};
  });
}

function method_text(parts) {
  return parts.map(({name, options}) => {
    const given = Object.entries(options).filter(([, value]) => value !== '');
    return name + (given.length > 0 ? ':' + given.map(([k, v]) => `${k}=${v}`).join(',') : '');
  }).join('+');
}

const words_of_options = {  // what an option may be, where it is one of few words
  'slim.option': ['kcache', 'vcache', 'xcache', 'encdec1', 'encdec2', 'hybrid', 'auto'],
  'kvr.partition': ['even', 'search'],
  'kvp.auxiliary': ['lp-0.75', 'lp-0.50', 'lp-0.25'],
};

function fill_methods() {
  const chosen = parse_method(active().method);
  const of_kind = kind => chosen.find(p => choices.methods.find(m => m.name === p.name)?.kind === kind);
  $('methods').innerHTML = Object.entries(kinds).map(([kind, [label, without]]) => {
    const part = of_kind(kind);
    const known = choices.methods.filter(m => m.kind === kind && m.name !== 'plain');
    const method = known.find(m => m.name === part?.name);
    const options = (method?.options ?? []).map(key => {
      const id = `option-${kind}-${key}`;
      const list = words_of_options[`${method.name}.${key}`] ??
        (['speculator', 'auxiliary'].includes(key) ? model_names() : null);
      return `<div><label for="${id}">${key}</label><input id="${id}" data-kind="${kind}" data-key="${key}"
        value="${escaped(part.options[key] ?? '')}" autocomplete="off" spellcheck="false"
        ${list ? `list="${id}-list"` : ''}>${list ? `<datalist id="${id}-list">${
          list.map(w => `<option value="${escaped(w)}">`).join('')}</datalist>` : ''}</div>`;
    }).join('');
    return `<label for="method-${kind}">${label}</label>
      <select id="method-${kind}" data-kind="${kind}">${options_html(
        [['', without], ...known.map(m => [m.name, m.name])], part?.name ?? '')}</select>
      ${method ? `<div class="method"><p>${escaped(method.summary)}</p><div class="pairs">${options}</div></div>` : ''}`;
  }).join('');
}

function on_method(event) {
  const {kind, key} = event.target.dataset;
  const kind_of = p => choices.methods.find(m => m.name === p.name)?.kind;
  const is_kind = p => kind_of(p) === kind;
  // What no control shows, none could take away.
  let parts = parse_method(active().method).filter(kind_of);
  if (key === undefined) {
    parts = parts.filter(p => !is_kind(p));
    const method = choices.methods.find(m => m.name === event.target.value);
    if (method) parts.push(...parse_method(method.example));
  } else {
    parts.find(is_kind).options[key] = event.target.value.trim().replace(/[+,;]/g, '');
  }
  active().method = method_text(parts);
  if (key === undefined) {
    fill_methods();
    $('method-' + kind).focus();
  }
  update();
}

// ---- Controls -------------------------------------------------------------------------------------

const options_html = (pairs, value) => pairs.map(([v, label]) =>
  `<option value="${escaped(v)}"${v === value ? ' selected' : ''}>${escaped(label)}</option>`).join('');
const names_in = folder => Object.keys(files).filter(f => f.startsWith(folder + '/') && f.endsWith('.json'))
  .map(f => f.slice(folder.length + 1, -'.json'.length)).sort();
const model_names = () => names_in('models');

/// A slider's places are eighths of a doubling for the first and last sizes that differ by one.
const at_place = place => {
  const size = 2 ** (place / 4);
  return String(Math.max(1, size < 16 ? Math.round(size) : Math.round(size / 8) * 8));
};
const place_of = size => Math.round(4 * Math.log2(Math.max(1, Number(size) || 1)));

function fill_controls() {
  const c = active();
  $('controls').style.setProperty('--color', color(state.active));
  for (const flag of Object.keys(defaults)) {
    if (flag === 'method') continue;
    const control = $(flag);
    if (control.tagName === 'SELECT' && ![...control.options].some(o => o.value === c[flag])) {
      control.add(new Option(c[flag], c[flag]));
    }
    if (control.value !== c[flag]) control.value = c[flag];
  }
  sizes.forEach(set_slider);
  for (const key of ['x', 'y']) $(key).value = state[key];
  if (pasted[c.model] !== undefined) $('config').value = pasted[c.model];
  fill_methods();
}

function set_slider(flag) {
  const slider = $(flag + '-range');
  slider.value = place_of(active()[flag]);
  slider.setAttribute('aria-valuetext', active()[flag]);
}

function make_controls() {
  const description = (folder, name) => JSON.parse(files[`${folder}/${name}.json`]).description;
  const named = (folder, first) => [...first, ...names_in(folder).map(n => [n, `${n}: ${description(folder, n)}`])];
  const listed = (words, first) => [['', first], ...words.map(w => [w, w])];
  const devices = ['2', '4', '8', '16', '32', '64'];
  const fill = {
    'model': model_names().map(n => [n, n]),
    'hardware': named('hardware', []),
    'engine': [['', 'ideal: no host time, one launch an operator'],
               ...names_in('engines').filter(n => n !== 'ideal').map(n => [n, `${n}: ${description('engines', n)}`])],
    'dtype': listed(choices.dtypes, 'as the model'),
    'weight-dtype': listed([...choices.dtypes, ...choices.presets], 'as stored, or all'),
    'activation-dtype': listed(choices.dtypes, 'as all'),
    'cache-dtype': listed(choices.dtypes, 'as all'),
    'attention': [['', 'the engine’s'], ['eager', 'eager'], ['tiled', 'tiled']],
    'mode': [['', 'calibrated'], ['speed-of-light', 'speed of light']],
    'tp': listed(devices, '1'), 'pp': listed(devices, '1'), 'ep': listed(devices, '1'), 'dp': listed(devices, '1'),
    'platform': listed(names_in('platforms'), 'the device’s own'),
  };
  for (const [flag, pairs] of Object.entries(fill)) $(flag).innerHTML = options_html(pairs, '');
  $('y').innerHTML = options_html(Object.entries(curves).map(([k, v]) => [k, v.label]), state.y);
  $('x').innerHTML = options_html(Object.entries(axes).map(([k, v]) => [k, v.label]), state.x);

  $('controls').addEventListener('input', event => {
    const id = event.target.id;
    if (event.target.closest('#methods')) return on_method(event);
    if (id.endsWith('-range')) {
      const flag = id.slice(0, -'-range'.length);
      active()[flag] = $(flag).value = at_place(Number(event.target.value));
      event.target.setAttribute('aria-valuetext', active()[flag]);
    } else if (id in defaults) {
      active()[id] = event.target.value;
      if (sizes.includes(id)) set_slider(id);
      if (id === 'model') $('config-error').textContent = '';
    } else {
      return;
    }
    update();
  });
  $('use-config').addEventListener('click', use_config);
  for (const key of ['x', 'y', 'pass']) {
    $(key).addEventListener('input', event => {
      state[key] = event.target.value;
      update();
    });
  }
  $('add').addEventListener('click', () => {
    state.configurations.push({...active()});
    choose(state.configurations.length - 1);
    keep_focus($('add'));
  });
  $('remove').addEventListener('click', () => {
    state.configurations.splice(state.active, 1);
    choose(Math.min(state.active, state.configurations.length - 1));
    keep_focus($('remove'));
  });
  const keep_focus = button => {  // one that is disabled has none
    if (button.disabled) $('tabs').children[state.active].focus();
  };
  $('tabs').addEventListener('click', event => {
    const button = event.target.closest('button');
    if (button) choose(Number(button.dataset.index));
  });
  $('skip').addEventListener('click', event => {  // the address is the state's
    event.preventDefault();
    $('results').focus();
  });
  addEventListener('hashchange', () => {
    if (location.hash === written) return;
    read_address();
    place_pasted();
    choose(state.active);
  });
}

function choose(index) {
  state.active = index;
  fill_controls();
  update();
}

/// A path that its text alone decides, so that results of another text are never taken for its own.
function path_of(text) {
  let hash = 0x811c9dc5;
  for (const c of text) hash = Math.imul(hash ^ c.codePointAt(0), 0x01000193) >>> 0;
  return `own-${hash.toString(16)}/config.json`;
}

function place_pasted() {
  for (const [path, text] of Object.entries(pasted)) {
    if (path_of(text) !== path) continue;
    estimator.FS.mkdirTree('/' + path.split('/')[0]);
    estimator.FS.writeFile('/' + path, text);
  }
}

function use_config() {
  const text = $('config').value.trim();
  if (text === '') {
    $('config-error').textContent = 'Nothing is pasted: expected the text of a config.json.';
    return;
  }
  const path = path_of(text);
  pasted[path] = text;
  place_pasted();
  const {error} = run(estimate_words({...defaults, model: path}));
  $('config-error').textContent = error ?? '';
  if (error) {
    delete pasted[path];
    return;
  }
  active().model = path;
  choose(state.active);
}

// ---- Hover, keys, copies --------------------------------------------------------------------------

function move_tip(event) {
  const text = event.target.dataset?.tip;
  $('tip').hidden = text === undefined;
  if (text === undefined) return;
  $('tip').textContent = text;
  const box = $('tip').getBoundingClientRect();
  $('tip').style.left = Math.min(event.clientX + 12, innerWidth - box.width - 8) + 'px';
  $('tip').style.top = (event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 16) + 'px';
}

function listen() {
  $('results').addEventListener('pointermove', event => {
    move_tip(event);
    const operator = event.target.dataset?.operator;
    if (operator !== undefined && Number(operator) !== chosen) {
      chosen = Number(operator);
      explain(shown_rows, forecasts[state.active].document);
    }
  });
  $('results').addEventListener('pointerdown', move_tip);
  $('results').addEventListener('pointerleave', () => { $('tip').hidden = true; });
  let width = innerWidth;
  addEventListener('resize', () => {
    if (innerWidth !== width) update();  // a phone's height changes as it scrolls
    width = innerWidth;
  });
  addEventListener('pagehide', write_address);
  addEventListener('scroll', () => { $('tip').hidden = true; }, {passive: true});
  $('all-operators').addEventListener('toggle', show_roofline);
  $('roofline').addEventListener('keydown', event => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (step === undefined || shown_rows.length === 0) return;
    event.preventDefault();
    chosen = (chosen + step + shown_rows.length) % shown_rows.length;
    explain(shown_rows, forecasts[state.active].document);
  });
  $('results').addEventListener('click', async event => {
    const {copy, csv} = event.target.dataset ?? {};
    if (csv !== undefined) {
      // The address is the state's: a link to a blob instead of one to '#'.
      const link = event.target;
      if (link.href.startsWith('blob:')) URL.revokeObjectURL(link.href);
      link.href = URL.createObjectURL(new Blob([csv_of[csv]()], {type: 'text/csv'}));
    }
    if (copy !== undefined) {
      const text = $(copy).querySelector('pre').textContent;
      try {
        await navigator.clipboard.writeText(text);
        event.target.textContent = 'Copied';
      } catch {
        getSelection().selectAllChildren($(copy).querySelector('pre'));
        event.target.textContent = 'Selected: copy it with Ctrl-C';
      }
    }
  });
}

let written = '';
function write_address() {
  written = address();
  if (location.hash !== written) history.replaceState(null, '', written);
}

let address_timer = 0;
let curves_timer = 0;
function show_curves_now() {
  clearTimeout(curves_timer);
  show_curves();
}
function update() {
  fit_plots();
  forecasts = state.configurations.map(c => run(estimate_words(c)));
  show_tabs();
  show_summary();
  show_numbers();
  show_bars();
  show_roofline();
  clearTimeout(curves_timer);  // a sweep of each configuration: they wait until a slider rests
  curves_timer = setTimeout(show_curves, 150);
  clearTimeout(address_timer);  // browsers allow few changes of it a second
  address_timer = setTimeout(write_address, 150);
}

async function start() {
  try {
    wasmBinary = new Uint8Array(await unpacked('module'));
    files = JSON.parse(new TextDecoder().decode(await unpacked('catalog')));
    await start_module();
  } catch (failure) {
    $('summary').textContent = `This browser cannot run the estimator: ${failure.message}. It needs WebAssembly with exceptions and DecompressionStream, which browsers have since 2023.`;
    return;
  }
  choices = run(['choices']).document;
  read_address();
  place_pasted();
  make_controls();
  listen();
  choose(state.active);
  show_curves_now();
  // For tests: a state in, and what is shown.
  globalThis.explorer = {
    first_forecast_ms: performance.now(),
    set(flags) {
      state.configurations = [].concat(flags).map(c => ({...defaults, ...c}));
      choose(0);
      show_curves_now();
    },
    forecasts: () => forecasts,
    commands: id => $(id).querySelector('pre')?.textContent.split('\n') ?? [],
    csv: id => csv_of[id](),
  };
}
// Once the page has been painted.
requestAnimationFrame(() => setTimeout(start));
