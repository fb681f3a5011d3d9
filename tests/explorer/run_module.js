// node run_module.js MODULE.js DATA: runs each command line of standard input, a JSON list of words a
// line, in the explorer's module and prints its result on a line.
const fs = require('fs');
const path = require('path');
const [moduleFile, data] = process.argv.slice(2);
const wasmBinary = fs.readFileSync(moduleFile.replace(/js$/, 'wasm'));
require(moduleFile)({wasmBinary}).then(module => {
  for (const folder of ['engines', 'hardware', 'models', 'platforms', 'validation']) {
    module.FS.mkdirTree('/data/' + folder);
    for (const file of fs.readdirSync(path.join(data, folder)).filter(f => /[.](json|csv)$/.test(f))) {
      module.FS.writeFile(`/data/${folder}/${file}`, fs.readFileSync(path.join(data, folder, file)));
    }
  }
  for (const line of fs.readFileSync(0, 'utf8').split('\n').filter(l => l !== '')) {
    fs.writeSync(1, module.ccall('kvcast_run', 'string', ['string'], [line]) + '\n');
  }
});
