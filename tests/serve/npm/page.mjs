// The page in Chromium, by keyboard only: node page.mjs ADDRESS CHROMIUM TEXT [FOLDER FOR PICTURES]
import { chromium } from "playwright-core";

const [address, executablePath, text, folder] = process.argv.slice(2);
const quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--no-sandbox"];
const browser = await chromium.launch({ executablePath, args: quiet });
const results = [];

async function focused(page) {
  return page.evaluate(() => document.activeElement.id || document.activeElement.textContent);
}

for (const width of [360, 1400]) {
  for (const colorScheme of ["light", "dark"]) {
    const context = await browser.newContext({ viewport: { width, height: 800 }, colorScheme });
    const page = await context.newPage();
    const errors = [], hosts = new Set();
    page.on("pageerror", error => errors.push(String(error)));
    page.on("console", message => message.type() === "error" && errors.push(message.text()));
    page.on("request", request => hosts.add(new URL(request.url()).origin));
    await page.goto(address);
    await page.waitForFunction(() => document.querySelector("#target").options.length > 0);
    const start = await focused(page);
    await page.keyboard.type(text);
    await page.keyboard.press("Control+Enter");
    await page.waitForFunction(() => document.querySelector("#translation").textContent !== "");
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
    results.push({ width, colorScheme, start, order, errors, hosts: [...hosts], ...facts });
    await context.close();
  }
}
await browser.close();
console.log(JSON.stringify(results));
