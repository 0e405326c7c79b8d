// The calls of DeepL's client of npm: node deepl-node.mjs ADDRESS KEY
import * as deepl from "deepl-node";

const [serverUrl, key] = process.argv.slice(2);
const settings = { serverUrl, maxRetries: 0, sendPlatformInfo: false };
const client = new deepl.Translator(key, settings);
const codes = languages => languages.map(({ code, name }) => [code, name]);
const text = result => (Array.isArray(result) ? result.map(one => one.text) : result.text);
const glossary = await client.createGlossary("names", "en", "de", new deepl.GlossaryEntries({ entries: { b: "x" } }));
const entries = (await client.getGlossaryEntries(glossary)).entries();
const withGlossary = await client.translateText("a b", "en", "de", { glossary });
await client.deleteGlossary(glossary);
const { text: words, detectedSourceLang, billedCharacters } = await client.translateText("a b c", null, "de");

console.log(JSON.stringify({
  single: { text: words, detectedSourceLang, billedCharacters },
  list: text(await client.translateText(["a b", "c d"], "en", "de")),
  html: text(await client.translateText("<p>a b</p>", "en", "de", { tagHandling: "html" })),
  split: text(await client.translateText("a b\nc d", "en", "de", { splitSentences: "off" })),
  source: codes(await client.getSourceLanguages()),
  target: codes(await client.getTargetLanguages()),
  limitReached: (await client.getUsage()).anyLimitReached(),
  glossary: text(withGlossary).split(" ").includes("x"),
  entries: Object.entries(entries),
  formality: await client.translateText("a", null, "de", { formality: "more" }).then(text, String),
  wrongKey: await new deepl.Translator("wrong", settings).translateText("a", null, "de").then(text, String),
}));
