// Of all visible text, what has a contrast to its ground below 4.5 (W3C, WCAG 2.1, 1.4.3).
() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = colour => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = element => { for (let e = element; e; e = e.parentElement) {
    const colour = rgba(getComputedStyle(e).backgroundColor); if (colour[3] > 250) return colour; }
    return rgba("canvas"); };
  const rects = [...document.querySelectorAll(".mark-rect path")].map(e => [e.getBoundingClientRect(), e]);
  const pale = [];
  let count = 0;
  const check = (element, colour, under, text) => {
    const [a, b] = [light(rgba(colour)), light(under)].sort((x, y) => y - x);
    count += 1;
    if ((a + 0.05) / (b + 0.05) < 4.5) pale.push(`${text.trim().slice(0, 40)}: ${colour} on ${under}`);
  };
  for (const e of document.querySelectorAll("body *:not(svg *)")) {
    if (e.closest("script, style, noscript, svg") || !e.checkVisibility()) continue;
    const text = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join("");
    if (text.trim()) check(e, getComputedStyle(e).color, ground(e), text);
  }
  for (const e of document.querySelectorAll("svg text")) {
    if (!e.textContent.trim() || e.getAttribute("opacity") === "0" || !e.checkVisibility()) continue;
    const box = e.getBoundingClientRect(), [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
    const cell = rects.findLast(([r, p]) => r.left < x && x < r.right && r.top < y && y < r.bottom
      && getComputedStyle(p).fill !== "none" && +(p.getAttribute("opacity") ?? 1) > 0.5);
    const under = cell ? rgba(getComputedStyle(cell[1]).fill) : ground(e);
    check(e, getComputedStyle(e).fill, under, e.textContent);
  }
  return {count, pale};
}
