// Ask the search of the site, which is a worker: node search_site.js WORKER INDEX WORDS...
// Print the pages of the first three hits for each argument.
const fs = require("fs");
const [worker, index, ...questions] = process.argv.slice(2);
const answers = [];
let ask;
globalThis.self = globalThis;
globalThis.addEventListener = (_, listener) => (ask = listener);
globalThis.postMessage = ({ type, data }) => {
  if (type === 3) answers.push(data.items.slice(0, 3).map((hit) => hit[0].location.split("#")[0]));
  if (answers.length === questions.length) console.log(JSON.stringify(answers));
  else ask({ data: { type: 2, data: questions[answers.length] } });
};
(0, eval)(fs.readFileSync(worker, "utf8"));
ask({ data: { type: 0, data: { ...JSON.parse(fs.readFileSync(index, "utf8")), options: {} } } });
