// Whether a report can be read by everybody: axe-core in Chromium at phone, laptop and print width.
//
//   npm install axe-core playwright-core    (in a folder of your own)
//   node benchmarks/report_accessibility.mjs runs/first/report.html --modules FOLDER/node_modules \
//       --chromium /usr/bin/chromium [--screenshots FOLDER]
//
// Prints the violations, whether anything is wider than the screen, what was asked of the network, and one line of JSON;
// exits with 1 where there is any. Screenshots and a PDF are written where a folder is named.

import { createRequire } from "node:module";
import { mkdirSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const { values: told, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    modules: { type: "string", default: "node_modules" },
    axe: { type: "string" },
    chromium: { type: "string", default: "/usr/bin/chromium" },
    screenshots: { type: "string" },
  },
});
const modules = resolve(told.modules);
const require = createRequire(`${modules}/`);
const { chromium } = require(`${modules}/playwright-core`);
const axe = told.axe ?? require.resolve(`${modules}/axe-core/axe.min.js`);
const quiet = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const views = {
  phone: { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, media: "screen" },
  laptop: { viewport: { width: 1280, height: 800 }, deviceScaleFactor: 1, media: "screen" },
  print: { viewport: { width: 720, height: 1000 }, deviceScaleFactor: 1, media: "print" },
};

const browser = await chromium.launch({ executablePath: told.chromium, args: ["--no-sandbox", "--disable-gpu", ...quiet] });
const address = pathToFileURL(resolve(positionals[0])).href;
const found = { violations: 0, checks_passed: 0, too_wide: 0, requests: 0 };
for (const [name, view] of Object.entries(views)) {
  const page = await browser.newPage({ viewport: view.viewport, deviceScaleFactor: view.deviceScaleFactor });
  page.on("request", (request) => {
    if (request.url() !== address && !request.url().startsWith("data:")) found.requests += 1;
  });
  await page.emulateMedia({ media: view.media });
  await page.goto(address);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  await page.addScriptTag({ path: axe });
  const result = await page.evaluate(() => globalThis.axe.run());
  for (const each of result.violations) {
    console.log(`${name}: ${each.id} (${each.impact}): ${each.help}`);
    for (const node of each.nodes.slice(0, 5)) console.log(`    ${node.html.slice(0, 160)}\n    ${node.failureSummary}`);
  }
  for (const each of result.incomplete) console.log(`${name}: to be looked at: ${each.id} (${each.nodes.length} places): ${each.help}`);
  console.log(`${name}: ${result.violations.length} violations, ${result.passes.length} rules passed, ${wide} pixels too wide`);
  found.violations += result.violations.length;
  found.checks_passed += result.passes.length;
  found.too_wide += Math.max(wide, 0);
  if (told.screenshots) {
    mkdirSync(told.screenshots, { recursive: true });
    if (view.media === "print") await page.pdf({ path: `${told.screenshots}/print.pdf`, format: "A4", preferCSSPageSize: true });
    else await page.screenshot({ path: `${told.screenshots}/${name}.png`, fullPage: true });
  }
  await page.close();
}
await browser.close();
console.log(JSON.stringify({ axe: require(`${modules}/axe-core/package.json`).version, ...found }));
process.exit(found.violations || found.too_wide || found.requests ? 1 : 0);
