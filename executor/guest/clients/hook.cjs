// Makes `import 'skill-tools'` work from every folder: ES modules do not look into NODE_PATH.
'use strict';
const hooks = require('node:module');
const { pathToFileURL } = require('node:url');
const target = pathToFileURL(require('node:path').join(__dirname, 'skill-tools', 'index.mjs')).href;
if (hooks.registerHooks) {
  hooks.registerHooks({
    resolve: (name, context, next) =>
      name === 'skill-tools' && context.conditions && context.conditions.includes('import')
        ? { url: target, format: 'module', shortCircuit: true }
        : next(name, context),
  });
} else if (hooks.register) {
  const code = `export const resolve = (name, context, next) => name === 'skill-tools'
    ? { url: ${JSON.stringify(target)}, format: 'module', shortCircuit: true } : next(name, context);`;
  hooks.register('data:text/javascript,' + encodeURIComponent(code));
}
