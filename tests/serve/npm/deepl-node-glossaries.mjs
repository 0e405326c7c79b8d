// The calls of DeepL's client of npm for glossaries of several languages: node deepl-node-glossaries.mjs ADDRESS KEY
import * as deepl from "deepl-node";

const [serverUrl, key] = process.argv.slice(2);
const client = new deepl.DeepLClient(key, { serverUrl, maxRetries: 0, sendPlatformInfo: false });
const dictionary = (source, entries) => ({
  sourceLangCode: source, targetLangCode: "de", entries: new deepl.GlossaryEntries({ entries }),
});
const count = ({ sourceLangCode, targetLangCode, entryCount }) => [sourceLangCode, targetLangCode, entryCount];
const counts = glossary => glossary.dictionaries.map(count);
const name = promise => promise.then(() => "found", error => error.constructor.name);
const glossary = await client.createMultilingualGlossary("names", [dictionary("en", { b: "x" }), dictionary("fr", { b: "y" })]);
const translated = async (source, target) =>
  (await client.translateText("a b", source, "de", { glossary })).text.split(" ").includes(target);

console.log(JSON.stringify({
  created: counts(glossary),
  translated: [await translated("en", "x"), await translated("fr", "y")],
  updated: counts(await client.updateMultilingualGlossaryDictionary(glossary, dictionary("en", { a: "z" }))),
  entries: Object.entries((await client.getMultilingualGlossaryDictionaryEntries(glossary, "en", "de")).entries.entries()),
  replaced: count(await client.replaceMultilingualGlossaryDictionary(glossary, dictionary("en", { a: "y" }))),
  csv: count(await client.replaceMultilingualGlossaryDictionaryWithCsv(glossary, "fr", "de", "a,x\nb,y")),
  name: (await client.updateMultilingualGlossaryName(glossary, "others")).name,
  listed: (await client.listMultilingualGlossaries()).map(each => each.name),
  withoutFrench: await client.deleteMultilingualGlossaryDictionary(glossary, "fr", "de")
    .then(async () => counts(await client.getMultilingualGlossary(glossary.glossaryId))),
  noDictionary: await name(client.getMultilingualGlossaryDictionaryEntries(glossary, "fr", "de")),
  deleted: await client.deleteMultilingualGlossary(glossary)
    .then(() => name(client.getMultilingualGlossary(glossary.glossaryId))),
}));
