// A page of attention in Chromium, by keyboard only: node attention.mjs FILE CHROMIUM [FOLDER FOR PICTURES]
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [file, executablePath, folder] = process.argv.slice(2);
const quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--no-sandbox"];
const browser = await chromium.launch({ executablePath, args: quiet });
const address = String(pathToFileURL(file));
const results = [];

async function press(page, ...keys) {
  for (const key of keys) await page.keyboard.press(key);
}

// Walk through the page with Tab and the arrow keys. Return what has the focus, and what the status line says.
async function walk(page) {
  const steps = [];
  const note = async () => steps.push(await page.evaluate(() => {
    const { id, value, textContent, ariaLabel } = document.activeElement;
    return { focus: id || ariaLabel || value || textContent, name: document.querySelector("#name").textContent,
      line: document.querySelector("#line").textContent };
  }));
  await press(page, "Tab"), await note(); // the kinds
  await press(page, "ArrowLeft", "ArrowLeft"), await note();
  await press(page, "Tab"), await note(); // the heads
  await press(page, "ArrowUp", "ArrowLeft", "ArrowLeft"), await note();
  await press(page, "Tab", "ArrowRight"), await note(); // matrix or lines
  await press(page, "ArrowLeft", "Tab", "ArrowRight"), await note(); // the threshold
  await press(page, "ArrowLeft", "Tab", "Enter"), await note(); // smaller
  await press(page, "Tab", "Enter"), await note(); // larger
  await press(page, "Tab", "ArrowDown"), await note(); // the large view: its first cell
  await press(page, "ArrowDown", "ArrowRight"), await note();
  await press(page, "Enter"), await note();
  await press(page, "End", "PageDown"), await note();
  await press(page, "Escape"), await note();
  return steps;
}

for (const width of [360, 1400]) {
  for (const colorScheme of ["light", "dark"]) {
    const context = await browser.newContext({ viewport: { width, height: 800 }, colorScheme });
    const page = await context.newPage();
    const errors = [], requests = [];
    page.on("pageerror", error => errors.push(String(error)));
    page.on("console", message => errors.push(message.text()));
    page.on("dialog", dialog => { errors.push(dialog.message()); dialog.dismiss(); });
    page.on("request", request => request.url() === address || requests.push(request.url()));
    await page.goto(address);
    await page.waitForFunction(() => document.documentElement.dataset.ready);
    const facts = await page.evaluate(() => ({
      milliseconds: Number(document.documentElement.dataset.ready),
      title: document.title,
      output: document.querySelector("#output").textContent,
      views: Object.fromEntries(kinds.flatMap(kind => kind.layers.flatMap(layer => columnsOf(kind).map(
        head => [nameOf(kind, layer, head), kind.n * kind.m > 400 ? [] : [...weights(kind, layer, head)]])))),
      table: [...document.querySelectorAll("#strongest tbody tr")].map(line => [...line.children].map(cell => cell.textContent)),
      isWide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
      background: getComputedStyle(document.body).backgroundColor,
    }));
    if (folder) await page.screenshot({ path: `${folder}/attention-${width}-${colorScheme}.png`, fullPage: true });
    const steps = await walk(page);
    const texts = await page.evaluate(() => [...document.querySelectorAll("#sheet .left text")].map(text => text.textContent));
    await page.emulateMedia({ forcedColors: "active" });
    const forcedColours = await page.evaluate(() => Object.fromEntries(
      [["heads", "aria-pressed"], ["kinds", "aria-selected"]].map(([id, attribute]) => {
        const colours = choice => [...document.querySelectorAll(`#${id} button[${attribute}="${choice}"]`)].map(
          button => getComputedStyle(button).borderBottomColor);
        return [id, { chosen: colours(true)[0], others: [...new Set(colours(false))] }];
      })));
    await page.emulateMedia({ media: "print", forcedColors: "none" });
    const paper = (await page.pdf({ format: "A4" })).length;
    results.push({ width, colorScheme, errors, requests, steps, texts, paper, forcedColours, ...facts });
    await context.close();
  }
}
await browser.close();
console.log(JSON.stringify(results));
