const data = JSON.parse(document.getElementById("data").textContent);
const options = {
  actions: false, renderer: "svg", defaultStyle: false, loader: { target: "_blank", rel: "noopener" },
  tooltip: { disableDefaultStyle: true },
};
// The names of the data that a chart shows.
const wanted = value => typeof value !== "object" || value === null ? []
  : Object.entries(value).flatMap(([key, item]) => key === "data" && item?.name ? [item.name] : wanted(item));
const draw = async place => {
  const spec = JSON.parse(place.firstElementChild.textContent);
  spec.datasets = Object.fromEntries(wanted(spec).map(name => [name, data[name]]));
  spec.width = "container";
  spec.autosize = { type: "fit-x", contains: "padding" };
  const box = document.createElement("div");
  box.style.width = "100%";
  place.append(box);
  try {
    await vegaEmbed(box, spec, options);
  } catch (error) {
    box.textContent = `This chart could not be drawn: ${error}`;
    console.error(error);
  }
};
// One after the other, so that the page answers while many are drawn. What is folded has no width yet.
const drawAll = async places => {
  for (const place of places) {
    await draw(place);
    await new Promise(resolve => setTimeout(resolve));
  }
};
for (const details of document.querySelectorAll("details.few"))
  details.addEventListener("toggle", async () => {
    await drawAll(details.querySelectorAll(".chart"));
    details.dataset.drawn = "yes";
  }, { once: true });
await drawAll([...document.querySelectorAll(".chart")].filter(place => !place.closest("details.few")));
document.documentElement.dataset.drawn = "yes";
