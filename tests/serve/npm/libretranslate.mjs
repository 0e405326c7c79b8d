// The calls of npm's libretranslate: node libretranslate.mjs ADDRESS KEY
import libretranslate from "libretranslate";

const [apiurl, apiKey] = process.argv.slice(2);
const call = (query, options = {}) =>
  libretranslate.translate({ query, source: "en", target: "de", apiurl, apiKey, ...options }).catch(String);

console.log(JSON.stringify({
  single: await call("a b c"),
  list: await call(["a b", "c d"]),
  auto: await call("a b", { source: undefined }),
  html: await call("<p>a b</p>", { format: "html" }),
  unknown: await call("a b", { target: "fr" }),
  wrongKey: (await call("a b", { apiKey: "wrong" })) ?? null, // this client does not look at the status
}));
