// The page in Chromium, by keyboard only: node page.mjs ADDRESS CHROMIUM TEXT [FOLDER FOR PICTURES]
// Then a text beyond the limit, an error of the server, and a text whose language is to be detected.
import { chromium } from "playwright-core";

const [address, executablePath, text, folder] = process.argv.slice(2);
const quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--no-sandbox"];
const browser = await chromium.launch({ executablePath, args: quiet });
const results = [];

async function focused(page) {
  return page.evaluate(() => document.activeElement.id || document.activeElement.textContent);
}

// Return what the page shows and says after `text` is its text, and what Copy then says.
async function after(page, text) {
  await page.fill("#text", text);
  await page.keyboard.press("Control+Enter");
  await page.waitForFunction(() => !["", "Translating …", "Copied."].includes(document.querySelector("#status").textContent));
  const facts = await page.evaluate(() => ({
    status: document.querySelector("#status").textContent,
    translation: document.querySelector("#translation").textContent,
    length: document.querySelector("#text").value.length,
  }));
  await page.click("#copy");
  return { ...facts, copy: await page.textContent("#status") };
}

for (const width of [360, 1400]) {
  for (const colorScheme of ["light", "dark"]) {
    const context = await browser.newContext({ viewport: { width, height: 800 }, colorScheme });
    const page = await context.newPage();
    const errors = [], hosts = new Set();
    page.on("pageerror", error => errors.push(String(error)));
    page.on("console", message => message.type() === "error" && !/ 503 /.test(message.text()) && errors.push(message.text()));
    page.on("request", request => hosts.add(new URL(request.url()).origin));
    await page.goto(address);
    await page.waitForFunction(() => document.querySelector("#target").options.length > 0);
    const start = await focused(page);
    await page.keyboard.type(text);
    await page.keyboard.press("Control+Enter");
    await page.waitForFunction(() => document.querySelector("#translation").textContent !== "");
    const status = await page.textContent("#status");
    const order = [];
    while (order.length < 6 && order.at(-1) !== "copy") {
      await page.keyboard.press("Tab");
      order.push(await focused(page));
    }
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector("#status").textContent === "Copied.");
    const facts = await page.evaluate(() => ({
      translation: document.querySelector("#translation").textContent,
      alternatives: document.querySelectorAll("#others li").length,
      isWide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
      small: [...document.querySelectorAll("button, select, textarea")].filter(one => one.getBoundingClientRect().height < 24).length,
      background: getComputedStyle(document.documentElement).backgroundColor,
    }));
    if (folder) await page.screenshot({ path: `${folder}/page-${width}-${colorScheme}.png`, fullPage: true });
    const long = await after(page, "a".repeat(10_001));
    await page.route("**/translate", route => route.fulfill({ status: 503, json: { error: "no translation within 30 s" } }));
    const failure = await after(page, text);
    await page.unroute("**/translate");
    await page.route("**/translate", route => route.fulfill({ json: { translatedText: "a a", doubts: ["repeated", "cut"], textConfidence: 0.364 } }));
    const doubtful = await after(page, text);
    await page.unroute("**/translate");
    await page.selectOption("#source", "auto");
    const detected = await after(page, text);
    const isSwapDisabled = await page.isDisabled("#swap");
    const cases = { long, failure, doubtful, detected };
    results.push({ width, colorScheme, start, status, order, errors, cases, isSwapDisabled, hosts: [...hosts], ...facts });
    await context.close();
  }
}
await browser.close();
console.log(JSON.stringify(results));
