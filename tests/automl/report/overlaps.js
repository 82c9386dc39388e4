// The boxes of all visible text, cut to what scrolls around it: of HTML by line, of the charts by label.
// Every pair that shares more than a pixel both ways is returned.
() => {
  const boxes = [];
  const add = (rect, element, text) => {
    let [left, top, right, bottom] = [rect.left, rect.top, rect.right, rect.bottom];
    for (let e = element; e && e !== document.body; e = e.parentElement) {
      if (e.ownerSVGElement || getComputedStyle(e).overflow === "visible") continue;
      const outer = e.getBoundingClientRect();
      left = Math.max(left, outer.left); right = Math.min(right, outer.right);
      top = Math.max(top, outer.top); bottom = Math.min(bottom, outer.bottom);
    }
    if (right - left > 1 && bottom - top > 1) boxes.push({left, top, right, bottom, text: text.slice(0, 60)});
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest("svg, script, style, #vg-tooltip-element")) continue;
    if (!parent.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) add(rect, parent, node.data.trim());
  }
  const labels = [...document.querySelectorAll("svg text")].filter(
    label => label.textContent.trim() && label.getAttribute("opacity") !== "0" && label.checkVisibility());
  for (const label of labels) {
    // A box is as high as the font's tallest letter; what is drawn is less.
    const {left, right, top, bottom} = label.getBoundingClientRect(), spare = (bottom - top) / 8;
    const name = label.closest("figure")?.dataset.plot;
    const turned = bottom - top > right - left;
    add(turned ? {left: left + 2, right: right - 2, top, bottom}
      : {left, right, top: top + spare, bottom: bottom - spare}, label, `${name} ${label.textContent}`);
  }
  boxes.sort((a, b) => a.top - b.top);
  const overlaps = [];
  boxes.forEach((a, i) => {
    for (let j = i + 1; j < boxes.length && boxes[j].top < a.bottom; j++) {
      const b = boxes[j];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      const size = `${wide.toFixed(1)} x ${high.toFixed(1)}`;
      if (wide > 1 && high > 1) overlaps.push(`${a.text} | ${b.text} | ${size}`);
    }
  });
  return {boxes: boxes.length, labels: labels.length, overlaps};
}
