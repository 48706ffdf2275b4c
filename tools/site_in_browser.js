// What tools/site_in_browser.py asks of a page, in the page: its height, the scheme that it is shown in, and sentences on what is wrong.
async () => {
  await document.fonts.ready;
  await new Promise((done) => setTimeout(done, 50));
  const width = document.documentElement.clientWidth;
  const told = new Set();
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

  // Red, green, blue and opacity from 0 to 1, of any colour that CSS has.
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (front, back) => [0, 1, 2].map((i) => front[i] * front[3] + back[i] * (1 - front[3])).concat(1);
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((back, layer) => over(layer, back), [255, 255, 255, 1]);
  };
  const luminance = (colour) =>
    [0.2126, 0.7152, 0.0722].reduce((sum, share, i) => {
      const c = colour[i] / 255;
      return sum + share * (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    }, 0);
  const contrast = (x, y) => {
    const [low, high] = [luminance(x), luminance(y)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const scrolls = (element) => {
    for (let at = element; at && at !== document.body; at = at.parentElement)
      if (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(at).overflowX)) return true;
    return false;
  };
  const name = (element) => `${element.tagName.toLowerCase()} "${element.textContent.trim().slice(0, 40).replace(/\s+/g, " ")}"`;

  const article = document.querySelector("article");
  if (!article) told.add("it has no article");
  if (document.documentElement.scrollWidth > width) told.add(`it is ${document.documentElement.scrollWidth} pixels wide`);
  for (const element of article ? article.querySelectorAll("*") : []) {
    const box = element.getBoundingClientRect();
    const style = getComputedStyle(element);
    if (!box.width || !box.height || style.visibility === "hidden" || style.opacity === "0") continue;
    if (box.right > width + 1 && !scrolls(element.parentElement)) told.add(`${name(element)} ends at ${Math.round(box.right)}`);
    if (element.tagName === "IMG" && !element.naturalWidth) told.add(`picture ${element.getAttribute("src")} is not shown`);
    const text = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    if (!text || element.closest("svg") || element.classList.contains("headerlink")) continue;
    const back = behind(element);
    const ratio = contrast(over(rgba(style.color), back), back);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) told.add(`${name(element)} has a contrast of ${ratio.toFixed(1)}`);
  }
  const page = behind(document.body);
  return {
    height: Math.ceil(document.documentElement.scrollHeight),
    scheme: luminance(page) > 0.5 ? "light" : "dark",
    told: [...told].slice(0, 20),
  };
}
